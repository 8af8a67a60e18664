import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from divconq.analysis import (
    class_variances,
    distances,
    effective_dimension,
    effective_dimensions,
    expected_distance,
    expected_distance_on_sphere,
    hubness,
    nearest_other,
    nearest_same,
    neighbours,
    positive_negative_ratio,
)
from divconq.analysis.measures import nearest, space

SOP_IMAGES = 60_502


def points(n, d, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def classes(n, c, seed=0):
    return torch.randint(c, (n,), generator=torch.Generator().manual_seed(seed))


def on_sphere(n, d, seed=0):
    return F.normalize(points(n, d, seed))


def closest_by_hand(x, i, allowed):
    others = [(float((x[i] - x[j]).double().norm()), j) for j in range(len(x)) if allowed(j)]
    return min(others, default=(math.nan, -1))


def dimension_by_hand(x, share):
    """The number of principal directions that leave at most 1 - share of the variance."""
    centred = (x - x.mean(0)).double().numpy()
    _, _, directions = np.linalg.svd(centred)
    for m in range(len(directions) + 1):
        kept = centred @ directions[:m].T @ directions[:m]
        if ((centred - kept) ** 2).sum() <= (1 - share) * (centred**2).sum() * (1 + 1e-9):
            return m
    raise AssertionError


@pytest.mark.parametrize("share", [0.5, 0.95, 1.0])
@pytest.mark.parametrize(("n", "d"), [(50, 8), (6, 20), (2, 3)])
def test_effective_dimension_matches_a_projection(n, d, share):
    x = points(n, d) * torch.linspace(2, 0.1, d) + 5
    if share == 1.0:
        assert effective_dimension(x.double(), share) == min(n - 1, d)
    else:
        assert effective_dimension(x, share) == dimension_by_hand(x, share)


def test_nineteen_of_twenty_equal_variances_are_95_percent():
    x = torch.cat([torch.eye(20), -torch.eye(20)])
    assert effective_dimension(x) == 19
    assert effective_dimension(x, share=0.951) == 20


def test_effective_dimension_without_variance():
    assert effective_dimension(torch.empty(0, 4)) is None
    assert effective_dimension(torch.ones(1, 4)) == 0
    assert effective_dimension(points(1, 4).repeat(1001, 1)) == 0
    with pytest.raises(ValueError, match="share must be above 0 and at most 1, got 95"):
        effective_dimension(torch.ones(2, 2), share=95)


def test_results_do_not_depend_on_the_block_size(monkeypatch):
    x = points(300, 16) * torch.linspace(3, 0.1, 16)
    whole = effective_dimension(x), class_variances(x, classes(300, 7)), neighbours(x, 3)
    gaps = distances(x, x, whole[2]), nearest_same(x, classes(300, 7))
    monkeypatch.setattr(nearest, "BLOCK", 1000)
    assert effective_dimension(x) == whole[0]
    again = class_variances(x, classes(300, 7))
    assert (again.intra, again.inter) == pytest.approx((whole[1].intra, whole[1].inter))
    assert torch.equal(distances(x, x, whole[2]), gaps[0])
    assert torch.equal(nearest_same(x, classes(300, 7))[0], gaps[1][0])


def test_clusters_are_measured_in_their_own_subspace():
    f, clusters = points(60, 6).abs() + 0.1, classes(60, 2) * 2  # clusters 1 and 3 are empty
    masks = torch.tensor([[1, 1, 1, 0, 0, 0], [1] * 6, [-1, 0, 0, 0, 2, 1], [0] * 6]).float()
    found = effective_dimensions(f, clusters, masks)
    for k in (0, 2):
        x = f[clusters == k] * masks[k].clamp(min=0)
        assert found[k] == dimension_by_hand(x / x.norm(dim=1, keepdim=True), 0.95)
    assert found[1] is None
    assert found[3] is None
    assert effective_dimensions(f, torch.zeros(60).long(), torch.zeros(1, 6)) == [0]
    with pytest.raises(ValueError, match="clusters must be from 0 to 0"):
        effective_dimensions(f, clusters, masks[:1])


def test_class_variances_match_plain_loops():
    x, labels = points(80, 5).double() + 3, classes(80, 6) * 10
    mean, intra, inter = x.mean(0), 0.0, 0.0
    for c in labels.unique():
        members = x[labels == c]
        centre = members.mean(0)
        intra += sum(float((member - centre).square().sum()) for member in members) / len(x)
        inter += len(members) / len(x) * float((centre - mean).square().sum())
    found = class_variances(x, labels)
    assert (found.intra, found.inter) == pytest.approx((intra, inter))
    assert found.intra + found.inter == pytest.approx(float(x.var(0, correction=0).sum()))


def test_variances_in_extreme_cases():
    x = points(12, 3)
    total = float(x.double().var(0, correction=0).sum())
    one, single = class_variances(x, torch.zeros(12).long()), class_variances(x, torch.arange(12))
    assert (one.intra, one.inter) == pytest.approx((total, 0), abs=1e-12)
    assert (single.intra, single.inter) == pytest.approx((0, total), abs=1e-12)
    empty = class_variances(torch.empty(0, 3), torch.empty(0).long())
    assert math.isnan(empty.intra)
    assert math.isnan(empty.inter)


@pytest.mark.parametrize(("n", "c"), [(40, 5), (40, 1), (40, 40), (2, 1), (1, 1), (30, 25)])
def test_nearest_of_the_same_and_of_another_class(n, c):
    x, labels = points(n, 4), classes(n, c) if c < n else torch.arange(n)
    (same, near), (other, far) = nearest_same(x, labels), nearest_other(x, labels)
    for i in range(n):
        distance, j = closest_by_hand(x, i, lambda j, i=i: j != i and labels[j] == labels[i])
        assert (int(same[i]), float(near[i])) == (j, pytest.approx(distance, rel=1e-4, nan_ok=True))
        distance, j = closest_by_hand(x, i, lambda j, i=i: labels[j] != labels[i])
        assert (int(other[i]), float(far[i])) == (j, pytest.approx(distance, rel=1e-4, nan_ok=True))


@pytest.mark.parametrize("k", [1, 4, 39])
def test_known_neighbours_do_not_change_the_result(k):
    x, labels = points(40, 4).round(), classes(40, 2)
    for some in (labels, torch.zeros(40).long(), torch.arange(40)):
        index, gaps = nearest_other(x, some, neighbours(x, k))
        expected, distance = nearest_other(x, some)
        assert torch.equal(index, expected)
        torch.testing.assert_close(gaps, distance, equal_nan=True)


def test_the_ratio_leaves_out_images_without_positive_or_negative():
    x = points(40, 4)
    x = torch.cat([x, x[:3]])
    labels = torch.cat([classes(40, 8), torch.tensor([90, 91, 92])])
    ratios = []
    for i in range(len(x)):
        same, _ = closest_by_hand(x, i, lambda j, i=i: j != i and labels[j] == labels[i])
        other, _ = closest_by_hand(x, i, lambda j, i=i: labels[j] != labels[i])
        if not math.isnan(same) and other > 0:
            ratios.append(same / other)
    assert 0 < len(ratios) < 40
    found = positive_negative_ratio(nearest_same(x, labels)[1], nearest_other(x, labels)[1])
    assert found == pytest.approx(sum(ratios) / len(ratios), rel=1e-5)


@pytest.mark.parametrize("labels", [torch.zeros(9).long(), torch.arange(9)])
def test_no_ratio_with_one_class_or_classes_of_one_image(labels):
    x = points(9, 3)
    assert math.isnan(positive_negative_ratio(nearest_same(x, labels)[1], nearest_other(x, labels)[1]))


def test_neighbours_and_distances_match_a_sort():
    x, gallery = points(30, 4), points(17, 4, seed=1)
    order = torch.cdist(x.double(), x.double()).fill_diagonal_(-1).argsort(1)[:, 1:]
    found = neighbours(x, 5)
    assert torch.equal(found, order[:, :5])
    some = torch.tensor([7, 0, 7])
    assert torch.equal(neighbours(x, 5, queries=some), found[some])
    table = torch.cdist(x.double(), gallery.double())
    across = neighbours(x, 17, gallery=gallery)
    assert torch.equal(across, table.argsort(1))
    torch.testing.assert_close(distances(x, gallery, across).double(), table.sort(1).values)
    assert distances(x, gallery, torch.full((30, 1), -1)).isnan().all()


def test_fewer_points_than_neighbours():
    assert neighbours(points(4, 2), 10).shape == (4, 3)
    for n in (0, 1):
        x = points(n, 2)
        ranking = neighbours(x, 10)
        assert ranking.shape == (n, 0)
        assert math.isnan(expected_distance(distances(x, x, ranking), 1))
        assert math.isnan(hubness(ranking, found=n))
    assert nearest_same(points(0, 2), torch.empty(0).long())[0].shape == (0,)
    assert nearest_other(points(0, 2), torch.empty(0).long())[1].shape == (0,)
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        neighbours(points(4, 2), 0)
    with pytest.raises(ValueError, match="x must be finite, got NaN or infinity in 1 of 1 rows"):
        neighbours(torch.tensor([[math.nan]]), 1)


@pytest.mark.parametrize("k", [1, 3, 10])
def test_expected_distance_is_a_mean_of_means(k):
    x = points(25, 6)
    means = []
    for i in range(len(x)):
        others = sorted(float((x[i] - x[j]).double().norm()) for j in range(len(x)) if j != i)
        means.append(sum(others[:k]) / k)
    found = distances(x, x, neighbours(x, 10))
    assert expected_distance(found, k) == pytest.approx(sum(means) / len(means), rel=1e-6)
    assert math.isnan(expected_distance(found, 11))


@pytest.mark.parametrize(("k", "paper"), [(1, 1.275), (10, 1.290)])
def test_the_papers_reference_for_the_sphere_at_the_size_of_sop(k, paper):
    assert round(expected_distance_on_sphere(SOP_IMAGES, 512, k), 3) == paper


def test_points_drawn_on_the_sphere_agree_with_the_reference_at_the_size_of_sop():
    x, asked = on_sphere(SOP_IMAGES, 512), torch.arange(300)
    found = distances(x[asked], x, neighbours(x, 10, queries=asked, budget=256 << 20))
    for k in (1, 10):
        assert expected_distance(found, k) == pytest.approx(
            expected_distance_on_sphere(len(x), 512, k), abs=0.003
        )


@pytest.mark.parametrize(("n", "d", "k"), [(2, 3, 1), (12, 2, 1), (12, 2, 11), (50, 3, 4), (400, 16, 10)])
def test_the_reference_is_the_mean_over_many_draws(n, d, k):
    generator = torch.Generator().manual_seed(0)
    x = F.normalize(torch.randn(200_000 // n**2 + 200, n, d, generator=generator).double(), dim=2)
    first = (x[:, :1] - x[:, 1:]).norm(dim=2).sort(1).values[:, :k].mean(1)
    error = float(first.std() / len(first) ** 0.5)
    assert abs(float(first.mean()) - expected_distance_on_sphere(n, d, k)) < 4 * error


def test_two_points_on_a_sphere_have_a_known_distance():
    assert expected_distance_on_sphere(2, 2, 1) == pytest.approx(4 / math.pi, rel=1e-6)
    assert expected_distance_on_sphere(2, 3, 1) == pytest.approx(4 / 3, rel=1e-6)
    assert expected_distance_on_sphere(10**6, 2, 1) == pytest.approx(math.pi / 10**6, rel=1e-3)


@pytest.mark.parametrize(("n", "d", "k"), [(0, 8, 1), (1, 8, 1), (10, 8, 10), (10, 1, 1), (10, 8, 0)])
def test_no_reference_where_there_are_no_neighbours_or_no_sphere(n, d, k):
    assert math.isnan(expected_distance_on_sphere(n, d, k))


def test_hubness_is_the_skewness_of_the_occurrences():
    from scipy.stats import skew

    ranking = neighbours(points(60, 30), 5)
    times = [sum(int(i) in row for row in ranking.tolist()) for i in range(60)]
    assert hubness(ranking, found=60) == pytest.approx(float(skew(times)))
    star = torch.cat([torch.zeros(1, 8), torch.eye(8)])
    assert hubness(neighbours(star, 1), found=9) > 2
    assert hubness(torch.tensor([[1], [2], [0]]), found=3) == 0
    assert hubness(torch.tensor([[1, -1], [0, -1]]), found=2) == 0


def test_ten_thousand_classes():
    x, labels = on_sphere(20_000, 8), torch.arange(10_000).repeat(2)
    index, gaps = nearest_same(x, labels)
    assert torch.equal(index, (torch.arange(20_000) + 10_000) % 20_000)
    assert float(gaps[17]) == pytest.approx(float((x[17] - x[10_017]).norm()), rel=1e-5)
    assert class_variances(x, labels).intra == pytest.approx(
        float((x[:10_000].double() - x[10_000:].double()).square().sum()) / 40_000
    )


def test_nearest_other_of_some_images():
    x, labels, some = points(40, 3), classes(40, 4), torch.tensor([5, 0, 33])
    index, gaps = nearest_other(x, labels)
    for ranking in (None, neighbours(x, 2, queries=some)):
        found, distance = nearest_other(x, labels, ranking, queries=some)
        assert torch.equal(found, index[some])
        assert torch.equal(distance, gaps[some])


def test_moments_of_a_sample_are_unbiased():
    ranking = neighbours(points(8, 2), 3)
    times = ranking.flatten().bincount(minlength=8).double()
    away = times - times.mean()
    expected = float(times.mean()), float(away.square().mean()), float(away.pow(3).mean())
    assert space._central_moments(ranking, 8, 8) == pytest.approx(expected)
    raw = torch.stack([times, times**2, times**3]).mean(1)
    for q in (3, 5):
        draws = [torch.tensor(draw) for draw in itertools.combinations(range(8), q)]
        # Only the raw moments are unbiased, not the central ones.
        made = torch.tensor([raw_moments(*space._central_moments(ranking[draw], 8, 8)) for draw in draws])
        torch.testing.assert_close(made.double().mean(0), raw, rtol=1e-5, atol=0)


def raw_moments(mean, variance, third):
    second = variance + mean**2
    return mean, second, third + 3 * mean * second - 2 * mean**3


def test_hubness_of_a_sample_is_close_to_that_of_all():
    x = points(4000, 12)
    ranking, some = neighbours(x, 10), torch.arange(0, 4000, 4)
    whole = hubness(ranking, found=4000)
    assert hubness(ranking[some], found=4000, of=4000) == pytest.approx(whole, rel=0.1)
    assert hubness(ranking, found=4000, of=4000) == whole
    assert abs(hubness(ranking[some], found=4000) - whole) > 0.2 * whole, "without the correction it differs"
