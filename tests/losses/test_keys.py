"""A batch against keys, other images than those of the batch, for every loss that takes them."""

import functools

import pytest
import torch
from hypothesis import given, settings
from slow_losses import (
    assert_same,
    batches,
    random_points,
    random_uniform,
    slow_margin,
    slow_multi_similarity,
    slow_npairs,
    slow_soft_triplet,
    slow_triplet,
)

from divconq.losses import (
    LOSSES,
    MarginLoss,
    MultiSimilarityLoss,
    NPairsLoss,
    SoftTripletLoss,
    TripletLoss,
)
from divconq.losses.pairwise import EMPTY, Keys, all_pairs, distances, pair_masks

many = settings(max_examples=40, deadline=None, derandomize=True)


def margin(**switches):
    def both(x, labels, keys):
        uniform = random_uniform(len(x), len(x), len(keys[0]))
        betas = torch.full((len(x),), 1.2, dtype=torch.float64)
        loss = MarginLoss(**switches)
        return (
            lambda z: loss(z, labels, keys=Keys(*keys), uniform=uniform),
            lambda z: slow_margin(z, labels, uniform, 0.2, betas, **switches, keys=keys),
        )

    return both


def plain(loss, slow):
    def both(x, labels, keys):
        return lambda z: loss(z, labels, keys=Keys(*keys)), lambda z: slow(z, labels, keys=keys)

    return both


NPAIRS = NPairsLoss(scale=1.5).double().requires_grad_(False)
LOOPS = {
    "margin": margin(),
    "margin, without replacement": margin(without_replacement=True),
    "margin, equal pairs": margin(equal_pairs=True),
    "triplet": plain(TripletLoss(0.3), functools.partial(slow_triplet, alpha=0.3)),
    "soft_triplet": plain(SoftTripletLoss(), slow_soft_triplet),
    "npairs": plain(NPAIRS, functools.partial(slow_npairs, scale=NPAIRS.scale)),
    "multi_similarity": plain(MultiSimilarityLoss(), slow_multi_similarity),
    "multi_similarity, all pairs": plain(
        MultiSimilarityLoss(mine=False), functools.partial(slow_multi_similarity, mine=False)
    ),
}


def test_every_loss_that_takes_keys_is_compared_with_its_loop():
    able = {name for name, cls in LOSSES.items() if getattr(cls, "takes_keys", False)}
    assert able == {name.split(",")[0] for name in LOOPS}


@pytest.mark.parametrize("name", LOOPS)
@given(batch=batches())
@many
def test_a_batch_against_keys_is_the_loop(name, batch):
    """The first third of the images is the batch; some keys are empty."""
    x, labels = batch
    count = (len(x) + 2) // 3
    y, others = torch.cat([x[count:], x[:1]]), torch.cat([labels[count:], labels[:1]])
    others = torch.where(torch.arange(len(others)) % 4 == 3, EMPTY, others)
    x, labels = x[:count], labels[:count]
    assert_same(*LOOPS[name](x, labels, (y, others)), x)


@pytest.mark.parametrize("name", LOOPS)
def test_a_larger_batch_against_keys_is_the_loop_too(name):
    x, labels = random_points(seed=5, count=12, dim=16), torch.arange(12) % 7
    y, others = random_points(seed=6, count=40, dim=16), torch.arange(40) % 9 - 1
    loss, slow = LOOPS[name](x, labels, (y, others))
    assert loss(x).item() > 0
    assert_same(loss, slow, x)


@pytest.mark.parametrize("name", LOOPS)
def test_empty_keys_give_zero_and_zero_gradients(name):
    x, labels = random_points(seed=0, count=6).requires_grad_(), torch.arange(6) % 2
    value = LOOPS[name](x, labels, (torch.zeros(9, 5, dtype=torch.float64), torch.full((9,), EMPTY)))[0](x)
    value.backward()
    assert value.item() == 0
    assert not x.grad.any()


@pytest.mark.parametrize("name", LOOPS)
def test_empty_keys_beside_others_change_nothing(name):
    x, labels = random_points(seed=0, count=6), torch.arange(6) % 2
    y, others = random_points(seed=1, count=8), torch.arange(8) % 3
    wider = (
        torch.cat([y, torch.zeros(3, 5, dtype=torch.float64)]),
        torch.cat([others, torch.full((3,), EMPTY)]),
    )
    with_empty, without = (LOOPS[name](x, labels, keys)[1](x) for keys in (wider, (y, others)))
    if "margin" in name:  # its random numbers have another shape
        assert with_empty.item() > 0
    else:
        torch.testing.assert_close(LOOPS[name](x, labels, wider)[0](x), without, rtol=0, atol=1e-9)


def test_pairs_of_a_batch_and_keys():
    positives, negatives = all_pairs(torch.tensor([0, 5]), torch.tensor([0, 1, EMPTY]))
    assert positives.tolist() == [[True, False, False], [False, False, False]]
    assert negatives.tolist() == [[False, True, False], [True, True, False]]
    assert pair_masks(torch.tensor([0, 5]), torch.tensor([0, 1, EMPTY]))[1].tolist() == [
        [False, True, False],
        [False, False, False],
    ]


def test_distances_between_two_sets():
    x, y = random_points(seed=0, count=5), random_points(seed=1, count=7)
    wanted = torch.stack([torch.stack([(a - b).norm() for b in y]) for a in x])
    torch.testing.assert_close(distances(x, y), wanted, rtol=0, atol=1e-12)
