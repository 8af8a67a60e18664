"""Rotating masks: the blocks of fixed masks, in an order that depends on seed and epoch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from divconq import DivideAndConquer
from divconq.losses import NPairsLoss
from divconq.masks import MASKS, Masks
from divconq.masks.rotation import rotated


def blocks(dim, k):
    """The blocks of fixed masks, in the order of their dimensions."""
    masks = Masks(dim, k, "fixed")
    while masks.k < k:
        masks.split_()
    return masks.active()


def owners(masks):
    """The cluster that has each block."""
    return tuple(masks.active().argmax(1).argsort().tolist())


def rotating(dim, k, seed=0, epoch=0):
    masks = Masks(dim, k, "rotating")
    while masks.k < k:
        masks.split_()
        masks.rotate_(seed=seed, epoch=epoch)
    return masks


def slow_rotation(blocks, seed, epoch):
    """Sort the blocks by their first dimension, one by one, and give each cluster the block that is drawn for it."""
    ordered = sorted(blocks.tolist(), key=lambda block: block.index(1.0))
    drawn = np.random.default_rng([seed, epoch, 1]).permutation(len(blocks))
    return torch.tensor([ordered[number] for number in drawn])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    k=st.sampled_from([1, 2, 4, 8]),
    extra=st.integers(0, 20),
    seed=st.integers(0, 2**63 - 1),
    epochs=st.lists(st.integers(0, 1000), min_size=1, max_size=4),
)
def test_any_sequence_of_rotations_is_a_permutation_that_its_last_epoch_determines(k, extra, seed, epochs):
    masks = rotating(k + extra, k, seed, 7)
    assert masks.k == k
    for epoch in epochs:
        before = masks.active()
        masks.rotate_(seed=seed, epoch=epoch)
        assert torch.equal(masks.active(), slow_rotation(before, seed, epoch))
        assert torch.equal(masks.conquer(), torch.ones(k + extra))
    last = masks.active()
    masks.rotate_(seed=seed, epoch=epochs[-1])
    assert torch.equal(masks.active(), last), "a second call changes nothing"


def test_rotation_gives_out_the_blocks_of_fixed_masks():
    fixed = blocks(16, 8)
    for epoch in range(20):
        now = rotated(fixed, seed=1, epoch=epoch)
        by_position = sorted(now.tolist(), reverse=True)
        assert by_position == sorted(fixed.tolist(), reverse=True)


def test_the_order_depends_on_seed_and_epoch_only():
    masks, other = rotating(16, 8, seed=5, epoch=3), rotating(16, 8, seed=5, epoch=99)
    orders = {}
    for epoch in range(40):
        masks.rotate_(seed=5, epoch=epoch)
        orders[epoch] = owners(masks)
    for epoch in reversed(range(40)):
        other.rotate_(seed=5, epoch=epoch)
        assert owners(other) == orders[epoch]
    assert len(set(orders.values())) > 35, "8! orders hardly repeat in 40 epochs"
    other.rotate_(seed=6, epoch=3)
    assert owners(other) != orders[3]


def test_every_cluster_gets_every_block_equally_often():
    counts = torch.zeros(4, 4)
    masks = rotating(4, 4)
    for epoch in range(400):
        masks.rotate_(seed=0, epoch=epoch)
        counts += masks.active()
    assert counts.min() > 70
    assert counts.max() < 130


def test_a_split_halves_the_blocks_where_they_are():
    masks = Masks(8, 8, "rotating")
    masks.split_()
    masks.rotate_(seed=0, epoch=3)
    before = masks.active()
    masks.split_()
    assert torch.equal(masks.active()[::2] + masks.active()[1::2], before)
    masks.rotate_(seed=0, epoch=4)
    masks.split_()
    assert sorted(masks.active().tolist()) == sorted(torch.eye(8).tolist())


def test_other_kinds_do_not_rotate():
    for kind in set(MASKS) - {"rotating"}:
        masks = Masks(8, 4, kind)
        masks.split_()
        before = masks.weight.detach().clone()
        masks.rotate_(seed=0, epoch=3)
        assert torch.equal(masks.weight, before)


def test_rotation_is_in_place():
    masks = rotating(8, 4)
    place, buffer, before = masks.weight.data_ptr(), masks.weight, masks.active()
    masks.rotate_(seed=0, epoch=9)
    assert not torch.equal(masks.active(), before)
    assert masks.weight is buffer
    assert masks.weight.data_ptr() == place


@pytest.mark.parametrize("epochs", [range(6), [5, 0, 3, 3]])
def test_batches_rotate_at_the_start_of_every_epoch(epochs):
    def make():
        labels = torch.arange(96) % 16
        return DivideAndConquer(
            NPairsLoss(),
            labels,
            dim=8,
            batch=8,
            masks="rotating",
            division="random",
            k_max=4,
            divide_every=1,
            seed=2,
        )

    dc = make()
    for _ in range(2):  # until K = 4
        dc.divide(None, epoch=1)
    seen = {}
    for epoch in epochs:
        for _ in dc.batches(dc.sampler, epoch, lambda: pytest.fail("a random division needs no embeddings")):
            twin = Masks(8, 4, "rotating")
            twin.split_(), twin.split_()
            twin.rotate_(seed=2, epoch=epoch)
            assert torch.equal(dc.masks.active(), twin.active())
        seen[epoch] = owners(dc.masks)
    assert len(set(seen.values())) > 1
