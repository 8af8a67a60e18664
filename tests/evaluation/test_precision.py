"""Vectors far from the origin, huge, tiny, or of another type are scored as the numbers that were given."""

import sys

import pytest
import torch
from torch.nn.functional import normalize

from divconq.analysis.measures.errors import first_positive_ranks
from divconq.analysis.measures.nearest import distances, nearest_other, nearest_same, neighbours
from divconq.division.lloyd import kmeans
from divconq.evaluation import nmi, one_gallery_image, recall_at_1, retrieval_scores
from divconq.evaluation.metrics import spread
from divconq.evaluation.neighbours import BYTES_PER_KEY, COLUMNS, ROWS, nearest
from evaluation.slow_scores import scores_by_hand

SEARCH = sys.modules["divconq.evaluation.neighbours"]
WIDE = sys.modules["divconq.evaluation.wide_neighbours"]
LABELS = torch.arange(80) % 10


def points(d=8, seed=0, noise=1.0):
    """Float64 vectors around a centre for each of 10 classes, about 1 apart."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(10, d, generator=generator)[LABELS] + noise * torch.randn(80, d, generator=generator)
    return x.double()


def two_groups(distance):
    """The even classes are ``distance`` away from the origin, the odd ones as far on the other side."""
    return points() + torch.where(LABELS % 2 == 0, distance, -distance)[:, None]


HARD = {
    "offset 10": (points() + 10).float(),
    "offset 1000": (points() + 1000).float(),
    "offset 100000": (points() + 100_000).float(),
    "bfloat16 far away": (points() + 30).bfloat16(),
    "float16 far away": (points() + 300).half(),
    "float64 offset": points() + 1e9,
    "float64 below the resolution of float32": 1 + 1e-10 * points(),
    "collapsed unit vectors": normalize(1 + 1e-3 * points()).float(),
    "two groups": two_groups(10_000).float(),
    "float64 in two groups": two_groups(1e6),
    "huge": (1e30 * points()).float(),
    "largest": (points() / points().abs().max() * torch.finfo(torch.float32).max).float(),
    "tiny": (1e-30 * points()).float(),
    "denormal": (1e-43 * points()).float(),
    "float64 below the range of float32": 1e-200 * points(),
}


@pytest.mark.parametrize("case", HARD)
def test_scores_are_those_of_the_numbers_as_given(case):
    x = HARD[case]
    expected = scores_by_hand(*rescaled(x), ks=(1, 4))
    assert retrieval_scores(x, LABELS, ks=(1, 4)) == pytest.approx(expected, abs=1e-12)
    assert recall_at_1(x, LABELS) == pytest.approx(expected["recall@1"], abs=1e-12)
    searched = scores_by_hand(*rescaled(x[:30]), x[30:].double() / scale(x[:30]), LABELS[30:], ks=(1, 4))
    ours = retrieval_scores(x[:30], LABELS[:30], x[30:], LABELS[30:], (1, 4))
    assert ours == pytest.approx(searched, abs=1e-12)


def scale(x):
    """A power of two, which keeps equal distances equal."""
    return x.double().abs().max().log2().floor().exp2()


def rescaled(x):
    """The vectors in float64, with squares that float64 can hold, and their labels."""
    return x.double() / scale(x), LABELS[: len(x)]


def test_draws_of_a_gallery_far_from_the_origin():
    x = points()
    assert one_gallery_image((x + 1000).float(), LABELS) == one_gallery_image(
        (x + 1000).float() - 1000, LABELS
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_unit_vectors_are_compared_in_float32_as_always(dtype, monkeypatch):
    def wide(*arguments):
        pytest.fail("searched in float64")

    monkeypatch.setattr(SEARCH, "wide_nearest", wide)
    for x in (points(), points() + 2, points(noise=0.01)):
        retrieval_scores(normalize(x).to(dtype), LABELS)
    unit = normalize(points()).to(dtype)
    unit[:20] = 0  # the network gives zeros for some images
    retrieval_scores(unit, LABELS)
    with pytest.raises(pytest.fail.Exception, match="searched in float64"):
        retrieval_scores(unit + 50, LABELS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_vectors_far_away_are_found_in_order(dtype):
    x = (points() + 1000).to(dtype).repeat(5, 1)
    found = torch.cat(list(nearest(x[:80], x, 5)))
    assert found.tolist() == [list(range(i, 400, 80)) for i in range(80)]


@pytest.mark.parametrize("offset", [0, 4096, 10**6])
def test_equal_distances_far_away_are_found_in_order(offset):
    """Whole numbers: distances are exact, and many are equal."""
    x = torch.randint(0, 4, (80, 3), generator=torch.Generator().manual_seed(0)) + offset
    expected = scores_by_hand(x.float(), LABELS)
    assert retrieval_scores(x.float(), LABELS) == pytest.approx(expected, abs=1e-12)
    assert retrieval_scores(x.double(), LABELS) == pytest.approx(expected, abs=1e-12)


def test_the_search_in_float64_keeps_to_the_budget(monkeypatch):
    held = []
    top = WIDE._stable_top
    monkeypatch.setattr(WIDE, "_stable_top", lambda scores, k: held.append(scores.numel()) or top(scores, k))
    generator, k = torch.Generator().manual_seed(0), 30
    x = torch.randn(3 * COLUMNS, 2, generator=generator) + 1000
    budget = ROWS * (k + COLUMNS) * BYTES_PER_KEY
    blocks = list(nearest(x[: ROWS + 9], x, k, budget=budget))
    assert [len(block) for block in blocks] == [ROWS, 9]
    assert len(held) == 6
    assert max(held) * BYTES_PER_KEY <= budget
    assert torch.equal(torch.cat(blocks), torch.cat(list(nearest(x[: ROWS + 9], x, k))))


@pytest.mark.parametrize(
    "case",
    [case for case in HARD if "two groups" not in case and "denormal" not in case and "16" not in case],
)
def test_clusters_do_not_depend_on_the_origin_or_the_scale(case):
    x = HARD[case].double()
    near = (x - x.mean(0)) / (x - x.mean(0)).abs().max()
    assert torch.equal(kmeans(HARD[case], 4), kmeans(near.float(), 4))
    assert nmi(HARD[case], LABELS) == nmi(near.float(), LABELS)


@pytest.mark.parametrize("case", HARD)
def test_spread_is_that_of_the_directions(case):
    x = HARD[case].double() / scale(HARD[case])
    expected = 1 - float((x / x.norm(dim=1, keepdim=True)).mean(0).square().sum())
    assert spread(HARD[case]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("case", HARD)
def test_measures_of_neighbours_are_those_of_the_numbers_as_given(case):
    x, (y, _) = HARD[case], rescaled(HARD[case])
    apart = torch.cdist(y, y, compute_mode="donot_use_mm_for_euclid_dist").fill_diagonal_(torch.inf)
    same = LABELS[:, None] == LABELS
    ranking = apart.argsort(dim=1, stable=True)[:, :5]
    assert torch.equal(neighbours(x, 5), ranking)
    expected = (apart.gather(1, ranking) * scale(x)).float()
    assert torch.allclose(distances(x, x, ranking), expected, rtol=1e-5, atol=1e-44)
    within, between = apart.masked_fill(~same, torch.inf).min(1), apart.masked_fill(same, torch.inf).min(1)
    for (index, distance), (values, places) in zip(
        (nearest_same(x, LABELS), nearest_other(x, LABELS)), (within, between), strict=True
    ):
        assert torch.equal(index, places)
        assert torch.allclose(distance, (values * scale(x)).float(), rtol=1e-5, atol=1e-44)
    hits = LABELS[apart.argsort(dim=1, stable=True)] == LABELS[:, None]
    assert torch.equal(first_positive_ranks(x, LABELS), hits.int().argmax(1) + 1)
