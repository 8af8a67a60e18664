from collections import Counter
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from scipy.stats import chisquare
from slow_losses import batches, participants, random_uniform, slow_draw, slow_semi_hard

from divconq.losses.mining import (
    distance_weighted,
    distance_weighted_without_replacement,
    log_density,
    semi_hard,
)
from divconq.losses.pairwise import all_pairs, distances, pair_masks


@given(batches())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_semi_hard_is_the_loop(batch):
    x, labels = batch
    d = distances(x)
    index = semi_hard(d, pair_masks(labels)[1])
    for a, positives, negatives in participants(labels):
        for p in positives:
            assert index[a, p].item() == slow_semi_hard(d[a].tolist(), p, negatives)


@given(batches())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_distance_weighted_is_the_loop(batch):
    x, labels = batch
    d, uniform = distances(x), random_uniform(len(x), len(x))
    cutoff = torch.linspace(0.8, 1.6, len(x), dtype=torch.float64)
    index, drawn = distance_weighted(d, all_pairs(labels)[1], uniform, x.shape[1], cutoff)
    for a, positives, negatives in participants(labels):
        row = {n: d[a, n].item() for n in negatives}
        for p in positives:
            wanted = slow_draw(row, uniform[a, p].item(), x.shape[1], cutoff[a].item())
            assert (index[a, p].item() if drawn[a, p] else None) == wanted


GRID = torch.tensor([0.3, 0.5, 0.7, 0.9, 1.1, 1.3, 1.39, 1.5])  # 0.3 counts as 0.5; 1.5 is beyond the cutoff


@pytest.mark.parametrize("dim", [3, 5, 9])
def test_negatives_are_drawn_with_the_inverse_density_of_their_distance(dim):
    labels = torch.arange(320) % 2
    kind = torch.arange(320) // 2 % len(GRID)
    d = GRID[kind].expand(320, 320).contiguous()
    uniform = torch.rand(320, 320, generator=torch.Generator().manual_seed(dim))
    index, drawn = distance_weighted(d, all_pairs(labels)[1], uniform, dim, torch.full((320,), 1.4))
    assert drawn.all()
    assert (labels[index] != labels[:, None]).all()

    clipped = GRID[:7].double().clamp(min=0.5)
    weights = clipped ** (2 - dim) * (1 - clipped**2 / 4) ** ((3 - dim) / 2)
    expected = weights / weights.sum() * index.numel()
    counts = torch.bincount(kind[index].flatten(), minlength=len(GRID))
    assert counts[7] == 0
    assert chisquare(counts[:7].numpy(), expected.numpy()).pvalue > 0.001


def test_negatives_drawn_without_replacement_differ_and_follow_the_distribution():
    count = 20_000
    labels = torch.tensor([0, 0, 0, *range(1, 5)])
    d = torch.tensor([0.0, 0.2, 0.2, 0.9, 1.0, 1.1, 1.5]).expand(7, 7).contiguous()
    draw, pairs = torch.Generator().manual_seed(0), Counter()
    for _ in range(count):
        uniform = torch.rand(7, 7, generator=draw)
        index, drawn = distance_weighted_without_replacement(
            d, *all_pairs(labels), uniform, 4, torch.full((7,), 1.4)
        )
        assert drawn[0, 1]
        assert drawn[0, 2]
        pairs[index[0, 1].item(), index[0, 2].item()] += 1
    weight = {n: r**-2 * (1 - r**2 / 4) ** -0.5 for n, r in ((3, 0.9), (4, 1.0), (5, 1.1))}
    total, orders = sum(weight.values()), list(permutations(weight, 2))
    expected = [count * weight[i] / total * weight[j] / (total - weight[i]) for i, j in orders]
    assert pairs.keys() == set(orders)
    assert chisquare([pairs[order] for order in orders], expected).pvalue > 0.001


def test_positives_beyond_the_number_of_candidates_get_none():
    labels = torch.tensor([0, 0, 0, 0, 1, 1])
    d = torch.tensor([0.0, 0.2, 0.2, 0.2, 0.9, 1.5]).expand(6, 6).contiguous()
    index, drawn = distance_weighted_without_replacement(
        d, *all_pairs(labels), random_uniform(0, 6).float(), 8, torch.full((6,), 1.4)
    )
    assert drawn[0].tolist()[1:4] == [True, False, False]
    assert index[0, 1].item() == 4


def test_high_dimensions_neither_overflow_nor_leave_the_candidates():
    d = GRID.expand(8, 8).contiguous()
    labels = torch.tensor([0, 1, 1, 1, 1, 1, 1, 1])
    index, drawn = distance_weighted(
        d, all_pairs(labels)[1], random_uniform(0, 8).float(), 2048, torch.full((8,), 1.4)
    )
    assert drawn[0].all()
    assert (index[0] == 1).all()  # 0.5: a weight beyond all others in 2048 dimensions


def test_antipodes_have_a_finite_density():
    assert log_density(torch.tensor([0.5, 2.0, 2.1]), dim=512).isfinite().all()


def test_zero_gives_the_first_candidate():
    d = torch.tensor([0.0, 1.0, 1.5, 1.0]).expand(4, 4).contiguous()
    index, drawn = distance_weighted(
        d, all_pairs(torch.tensor([0, 0, 1, 1]))[1], torch.zeros(4, 4), 8, torch.full((4,), 1.4)
    )
    assert drawn.all()
    assert index[:, 0].tolist() == [3, 3, 0, 0]


def test_the_largest_uniform_number_gives_a_candidate_or_nothing():
    d = torch.full((4, 4), 1.0)
    labels, cutoff = torch.tensor([0, 0, 1, 0]), torch.full((4,), 1.4)
    index, drawn = distance_weighted(d, all_pairs(labels)[1], torch.ones(4, 4), 8, cutoff)
    assert ((index >= 0) & (index < 4)).all()
    assert not (drawn & (labels[index] == labels[:, None])).any()
