import math
from itertools import permutations

import pytest
import torch

from divconq.analysis import (
    class_shares,
    cluster_sizes,
    factors_of_clusters,
    levels,
    most_split,
    partition_change,
    partition_nmi,
)

NOTHING = torch.empty(0, dtype=torch.int64)


def draw(n, k, seed=0):
    return torch.randint(k, (n,), generator=torch.Generator().manual_seed(seed))


def nmi_by_hand(a, b):
    a, b, n = a.tolist(), b.tolist(), len(a)

    def entropy(groups):
        return -sum(groups.count(g) / n * math.log(groups.count(g) / n) for g in set(groups))

    information = 0.0
    for g in set(a):
        for h in set(b):
            both = sum(x == g and y == h for x, y in zip(a, b, strict=True)) / n
            if both:
                information += both * math.log(both / (a.count(g) / n * b.count(h) / n))
    return 2 * information / (entropy(a) + entropy(b))


@pytest.mark.parametrize(("j", "k"), [(2, 2), (3, 7), (40, 5), (1, 4)])
def test_nmi_matches_plain_loops_and_scikit_learn(j, k):
    from sklearn.metrics import normalized_mutual_info_score

    a, b = draw(80, j), draw(80, k, seed=1) * 5
    b[:30] = a[:30]
    assert partition_nmi(a, b) == pytest.approx(nmi_by_hand(a, b), abs=1e-12)
    assert partition_nmi(a, b) == pytest.approx(normalized_mutual_info_score(a, b), abs=1e-12)


def test_nmi_in_extreme_cases():
    assert partition_nmi(torch.zeros(5).long(), torch.ones(5).long()) == 1
    assert partition_nmi(torch.zeros(5).long(), torch.arange(5)) == 0
    assert partition_nmi(torch.arange(10_000), torch.randperm(10_000, generator=torch.Generator())) == 1
    assert math.isnan(partition_nmi(NOTHING, NOTHING))


@pytest.mark.parametrize(("new_k", "old_k"), [(1, 1), (3, 3), (4, 2), (4, 1), (3, 2), (2, 4)])
def test_kept_share_matches_the_best_permutation(new_k, old_k):
    old = draw(60, old_k)
    new = torch.where(
        draw(60, 4, seed=2) == 0, draw(60, new_k, seed=1), (old * max(1, new_k // old_k)) % new_k
    )
    coarse = new // (new_k // old_k) if new_k % old_k == 0 else new
    k = old_k if new_k % old_k == 0 else max(new_k, old_k)

    def iou(i, j):
        union = int(((coarse == i) | (old == j)).sum())
        return int(((coarse == i) & (old == j)).sum()) / union if union else 0.0

    best = max(permutations(range(k)), key=lambda names: sum(iou(i, names[i]) for i in range(k)))
    kept = sum(best[c] == o for c, o in zip(coarse.tolist(), old.tolist(), strict=True)) / 60
    change = partition_change(new, old, new_k, old_k)
    assert change.kept == pytest.approx(kept)
    assert change.nmi == partition_nmi(new, old)


def test_renamed_and_bisected_clusters_are_kept():
    old = torch.tensor([0, 0, 1, 1, 3])
    assert partition_change((old + 1) % 4, old, 4, 4).kept == 1
    assert partition_change(old * 2 + torch.tensor([0, 1, 1, 0, 0]), old, 8, 4).kept == 1
    assert math.isnan(partition_change(NOTHING, NOTHING, 2, 2).kept)
    with pytest.raises(ValueError, match="new must be from 0 to 1"):
        partition_change(old, old, 2, 4)


def test_sizes_with_mean_and_deviation():
    divisions = [draw(50, 4, seed) for seed in range(5)]
    found = cluster_sizes(divisions, k=5)  # the last is always empty
    for c in range(5):
        sizes = [labels.tolist().count(c) for labels in divisions]
        mean = sum(sizes) / 5
        assert found.sizes[:, c].tolist() == sizes
        assert float(found.mean[c]) == pytest.approx(mean)
        assert float(found.deviation[c]) == pytest.approx((sum((s - mean) ** 2 for s in sizes) / 5) ** 0.5)


def test_sizes_of_one_division_and_of_none():
    assert cluster_sizes([torch.zeros(3).long()], k=1).deviation.tolist() == [0]
    none = cluster_sizes([], k=2)
    assert none.sizes.shape == (0, 2)
    assert none.mean.isnan().all()
    assert none.deviation.isnan().all()
    assert cluster_sizes([NOTHING], k=2).sizes.tolist() == [[0, 0]]


def test_shares_of_classes_and_the_most_split():
    labels, clusters = draw(90, 12) * 2, draw(90, 4, seed=1)
    shares, expected = class_shares(labels, clusters, k=4), []
    for label in sorted(set(labels.tolist())):
        mine = clusters[labels == label].tolist()
        p = [mine.count(c) / len(mine) for c in range(4)]
        assert shares[label].tolist() == pytest.approx(p)
        entropy = -sum(q * math.log2(q) for q in p if q)
        if entropy > 0:
            expected.append((-round(entropy, 9), -len(mine), label))
    assert shares[1::2].isnan().all()
    found = most_split(labels, clusters, k=4, top=100)
    assert [(-round(s.entropy, 9), -s.images, s.label) for s in found] == sorted(expected)
    assert found[0].shares == tuple(shares[found[0].label].tolist())
    assert most_split(labels, clusters, k=4, top=2) == found[:2]


def test_ties_between_split_classes_go_to_the_larger():
    labels, clusters = torch.tensor([0, 0, 1, 1, 1, 1, 2]), torch.tensor([0, 1, 0, 1, 1, 0, 1])
    assert [split.label for split in most_split(labels, clusters, k=2)] == [1, 0]


def test_nothing_is_split_by_one_cluster_or_without_images():
    assert most_split(draw(30, 5), torch.zeros(30).long(), k=1) == []
    assert most_split(torch.arange(30), draw(30, 4), k=4) == []
    assert most_split(NOTHING, NOTHING, k=4) == []
    assert class_shares(NOTHING, NOTHING, k=4).shape == (0, 4)
    assert len(most_split(torch.arange(10_000).repeat(2), draw(20_000, 32), k=32)) == 12


def test_fractional_values_are_cut_into_equal_bins():
    values = torch.rand(80, generator=torch.Generator().manual_seed(0))
    found = levels(values, bins=4)
    assert found.bincount().tolist() == [20] * 4
    assert torch.equal(found, values.argsort().argsort() // 20)
    assert levels(torch.tensor([2.5, 2.5, 2.5])).unique().tolist() == [0]
    assert levels(torch.tensor([True, False])).tolist() == [1, 0]
    odd = levels(torch.tensor([1.0, math.nan, 2.0, math.inf]), bins=2)
    assert odd.tolist() == [0, 2, 1, 2]
    assert levels(torch.tensor([math.nan])).tolist() == [0]
    assert levels(torch.empty(0)).tolist() == []


def test_factors_of_clusters_match_plain_loops():
    colour, pose, light = draw(200, 5), draw(200, 3, seed=1), draw(200, 2, seed=2) + 0.5
    clusters = torch.where(colour == 2, 0, 1 + (pose == 1).long())
    factors = {"colour": colour, "pose": pose, "light": light, "constant": torch.zeros(200)}
    table = factors_of_clusters(clusters, factors, k=4)
    assert table.names == tuple(factors)
    for c in range(3):
        for f, values in enumerate((colour, pose, (light > 1).long())):
            assert float(table.values[c, f]) == pytest.approx(
                nmi_by_hand((clusters == c).long(), values), abs=1e-12
            )
    assert table.values[3].isnan().all()
    assert table.values[:, 3].isnan().all()
    strongest = table.strongest()
    assert strongest[0] == ("colour", float(table.values[0, 0]))
    assert strongest[2][0] == "pose"
    assert strongest[3] is None


def test_no_factors_and_one_cluster():
    assert factors_of_clusters(draw(9, 2), {}, k=2).strongest() == [None, None]
    assert factors_of_clusters(torch.zeros(9).long(), {"colour": draw(9, 3)}, k=1).strongest() == [None]
    assert factors_of_clusters(NOTHING, {"colour": NOTHING}, k=2).strongest() == [None, None]
