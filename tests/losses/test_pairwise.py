import pytest
import torch
from hypothesis import given, settings
from slow_losses import assert_same, batches, distance, participants

from divconq.losses.pairwise import distances, mean_of_nonzero, pair_masks, similarities, squared_distances


@given(batches())
@settings(max_examples=30, deadline=None, derandomize=True)
def test_distances_are_those_of_the_differences_and_so_are_their_gradients(batch):
    x, _ = batch
    weights = torch.arange(1.0, 1 + len(x) ** 2, dtype=x.dtype).reshape(len(x), len(x))
    rows = range(len(x))
    assert_same(
        lambda z: (distances(z) * weights).sum(),
        lambda z: sum(distance(z[i], z[j]) * weights[i, j] for i in rows for j in rows),
        x,
    )
    assert_same(
        lambda z: (squared_distances(z) * weights).sum(),
        lambda z: sum(((z[i] - z[j]) ** 2).sum() * weights[i, j] for i in rows for j in rows),
        x,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_copies_are_the_same_point_whatever_the_rounding(dtype):
    x = torch.randn(150, 512, generator=torch.Generator().manual_seed(0), dtype=dtype)
    x = torch.nn.functional.normalize(x, dim=1)
    copy = torch.arange(300) % 150
    d = distances(x[copy])
    same = copy[:, None] == copy[None, :]
    assert d.dtype == dtype
    assert (d[same] == 0).all()
    assert (d[~same] > 1).all()


def test_near_points_are_not_the_same_point():
    x = torch.tensor([[1.0, 0.0], [1.0, 0.003]])
    assert distances(x)[0, 1].item() == pytest.approx(0.003, rel=0.05)


def test_autocast_does_not_lower_the_precision():
    x = torch.nn.functional.normalize(torch.randn(20, 64, generator=torch.Generator().manual_seed(0)), dim=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        lowered = x @ x.T
        kept = similarities(x)
    assert lowered.dtype == torch.bfloat16
    assert torch.equal(kept, x @ x.T)


@given(batches())
@settings(max_examples=30, deadline=None, derandomize=True)
def test_pairs_are_those_of_the_anchors_that_have_a_positive_and_a_negative(batch):
    _, labels = batch
    positives, negatives = (mask.nonzero().tolist() for mask in pair_masks(labels))
    assert positives == [[a, p] for a, ps, _ in participants(labels) for p in ps]
    assert negatives == [[a, n] for a, _, ns in participants(labels) for n in ns]


def test_mean_of_nonzero_of_nothing_is_zero():
    assert mean_of_nonzero(torch.zeros(3, 3)).item() == 0
