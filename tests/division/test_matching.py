from itertools import permutations

import jaxtyping
import pytest
import torch

from divconq.division import match


def iou_by_hand(new, old, i, j):
    a = {n for n, c in enumerate(new.tolist()) if c == i}
    b = {n for n, c in enumerate(old.tolist()) if c == j}
    return len(a & b) / len(a | b) if a | b else 0.0


def total_iou(new, old, k, names):
    return sum(iou_by_hand(new, old, i, names[i]) for i in range(k))


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_match_inverts_every_permutation(k):
    old = torch.arange(k).repeat_interleave(torch.arange(1, k + 1))
    for names in permutations(range(k)):
        assert torch.equal(match(torch.tensor(names)[old], old, k), old)


@pytest.mark.parametrize("k", [2, 4, 8, 16, 32, 64])
def test_match_inverts_random_permutations(k):
    generator = torch.Generator().manual_seed(k)
    for _ in range(10):
        rest = torch.randint(k, (5 * k,), generator=generator)
        old = torch.cat([torch.arange(k), rest])
        assert torch.equal(match(torch.randperm(k, generator=generator)[old], old, k), old)


@pytest.mark.parametrize("k", [3, 5, 8, 64])
def test_match_inverts_a_long_cycle(k):
    old = torch.arange(k).repeat(3)
    assert torch.equal(match((old + 1) % k, old, k), old)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 6])
def test_match_maximises_total_iou(k):
    generator = torch.Generator().manual_seed(k)
    for _ in range(3):
        new, old = torch.randint(k, (2, 4 * k), generator=generator)
        renamed = match(new, old, k)
        reached = total_iou(renamed, old, k, range(k))
        best = max(total_iou(new, old, k, names) for names in permutations(range(k)))
        assert reached == pytest.approx(best, abs=1e-12)


def test_match_keeps_the_clusters_and_renumbers_them():
    new, old = torch.randint(8, (2, 100), generator=torch.Generator().manual_seed(0))
    pairs = set(zip(new.tolist(), match(new, old, 8).tolist(), strict=True))
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs}) == 8


def test_match_uses_iou_not_intersection():
    """New cluster 0 shares equally many images with both old ones, but has a higher IoU with the small one."""
    old = torch.tensor([0] * 10 + [1] * 3)
    new = torch.tensor([0] * 2 + [1] * 8 + [0] * 2 + [1])
    assert torch.equal(match(new, old, 2), 1 - new)


def test_match_accepts_empty_clusters():
    old = torch.tensor([0, 0, 3, 3])
    new = torch.tensor([1, 1, 2, 2])
    assert torch.equal(match(new, old, 4), old)
    nothing = torch.zeros(0, dtype=torch.int64)
    assert match(nothing, nothing, 4).tolist() == []


def test_errors(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # so that our own errors are reached
    labels = torch.tensor([0, 1])
    with pytest.raises(ValueError, match="same images, got 2 and 1"):
        match(labels, labels[:1], 2)
    with pytest.raises(ValueError, match="new must be from 0 to 0"):
        match(labels, labels * 0, 1)
    with pytest.raises(ValueError, match="old must be from 0 to 0"):
        match(labels * 0, labels, 1)
