"""Each activation against a slow twin that computes one entry at a time, and what it does with an entry at 0."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from divconq.config import Config
from divconq.losses import make_loss
from divconq.masks import MASK_ACTIVATIONS, Masks
from divconq.objective import Objective

NAMES = list(MASK_ACTIVATIONS)
COMES_BACK = {"relu": False, "projected": True, "softplus": True, "straight_through": True}
ENTRIES = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=6)


def slow(name, s):
    """Return the mask and its derivative at one number; after a projection, in the case of ``projected``."""
    if name == "softplus":
        return math.log1p(math.exp(s)), 1 / (1 + math.exp(-s))
    if name == "straight_through":
        return max(s, 0.0), 1.0
    if name == "projected":
        return max(s, 0.0), 1.0
    return max(s, 0.0), float(s > 0)


def split_masks(activation, dim=4, k_max=4, **settings):
    masks = Masks(dim, k_max, activation=activation, **settings)
    masks.split_()
    return masks


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(entries=ENTRIES)
def test_mask_and_gradient_equal_those_of_one_entry_at_a_time(name, entries):
    masks = split_masks(name, dim=len(entries), k_max=2).double()
    with torch.no_grad():
        masks.weight[0] = torch.tensor(entries)
    masks.project_()
    mask = masks.active()[0]
    (gradient,) = torch.autograd.grad(mask.sum(), masks.weight)
    expected = [slow(name, s) for s in entries]
    assert mask.tolist() == pytest.approx([value for value, _ in expected], rel=1e-9)
    assert gradient[0].tolist() == pytest.approx([slope for _, slope in expected], rel=1e-9)
    assert not gradient[1].any()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(entries=st.lists(st.floats(2**-20, 50, width=32), min_size=1, max_size=6))
def test_the_inverse_gives_a_parameter_with_this_mask(name, entries):
    forward, inverse = MASK_ACTIVATIONS[name].load()
    mask = torch.tensor([entries])
    torch.testing.assert_close(forward(inverse(mask)), mask, rtol=1e-5, atol=0)


def test_a_mask_of_zero_has_a_finite_parameter():
    for name in NAMES:
        forward, inverse = MASK_ACTIVATIONS[name].load()
        parameter = inverse(torch.zeros(1, 3))
        assert parameter.isfinite().all(), name
        assert forward(parameter).max() < 1e-30, name


def test_a_fresh_softplus_mask_has_the_parameter_of_ones():
    assert split_masks("softplus").weight[2:].unique().item() == pytest.approx(math.log(math.e - 1))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_a_split_copies_and_scales_masks_not_parameters(name, noise):
    """The children have the masks they have under relu, although their parameters differ."""
    masks, twin = split_masks(name, dim=16), split_masks("relu", dim=16)
    torch.manual_seed(0)
    with torch.no_grad():
        masks.weight[:2] = torch.randn(2, 16)
        masks.project_()
        twin.weight[:2] = masks.active()
    parents = masks.active()
    masks.split_(noise, seed=3)
    twin.split_(noise, seed=3)
    torch.testing.assert_close(masks.active(), twin.active(), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(masks.active()[::2] + masks.active()[1::2], 2 * parents, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(masks.conquer(), 2 * parents.sum(0), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_read_of_the_masks_is_the_mask_after_the_activation(name):
    masks = split_masks(name, dim=5, k_max=4)
    torch.manual_seed(1)
    nn.init.normal_(masks.weight)
    masks.project_()
    f, rows = torch.randn(3, 5), masks.active()
    unit = rows / rows.norm(dim=1, keepdim=True)
    assert (rows >= 0).all()
    for cluster in (0, 1):
        assert torch.equal(masks.select(f, cluster), f * rows[cluster])
        assert torch.equal(masks.select(f, torch.tensor(cluster)), f * rows[cluster])
    torch.testing.assert_close(masks.conquer(), rows.sum(0))
    torch.testing.assert_close(masks.overlap(), unit[0] @ unit[1])
    assert masks.dead() == sum(x <= 0.01 * max(row) for row in rows.tolist() for x in row) / 10


@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("name", NAMES)
def test_an_entry_that_was_driven_to_zero_comes_back_if_its_gradient_is_reversed(name, optimiser):
    masks, rate = split_masks(name), 0.1 if optimiser is torch.optim.Adam else 0.5
    optimizer = optimiser(masks.parameters(), lr=rate)

    def push(direction, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            (direction * masks.active()[0, 0]).backward()
            optimizer.step()
            masks.project_()

    push(+1, 100)
    assert masks.active()[0, 0] < 0.1, "it was driven to zero"
    assert masks.active()[0, 1:].tolist() == pytest.approx([1] * 3)
    push(-1, 400)
    assert (masks.active()[0, 0] > 0.5) == COMES_BACK[name]


def test_dead_entries_are_a_hundredth_of_the_largest_of_their_mask():
    masks = split_masks("relu")
    with torch.no_grad():
        masks.weight[:2] = torch.tensor([[10.0, 0.05, 0.2, -1], [0.01, 0.1, 0.002, 0.0005]])
        masks.weight[2:] = 0  # not in use
    assert masks.dead() == 3 / 8
    with torch.no_grad():
        masks.weight[0] = -1
    assert masks.dead() == 5 / 8, "every entry of a mask of zeros is dead"


def test_untrained_masks_have_no_activation():
    for kind in ("fixed", "rotating", "none"):
        masks = split_masks("softplus", kind=kind)
        assert set(masks.active().unique().tolist()) <= {0.0, 1.0}
        assert not masks.projects


def test_a_new_activation_is_one_line_of_the_table(monkeypatch):
    from divconq.masks import MaskActivation

    square = (lambda s: s.square(), lambda mask: mask.sqrt())
    monkeypatch.setitem(MASK_ACTIVATIONS, "square", MaskActivation(square))
    assert Config.of(mask_activation="square").masks.activation == "square"
    assert split_masks("square").conquer().tolist() == [2.0] * 4


def gradient_at_zero(name, loss, overlap_weight):
    """The gradient of an entry of the first of two masks that is at 0, and of one that is not."""
    torch.manual_seed(0)
    f, labels = torch.randn(24, 8).double(), torch.arange(24) // 4
    masks = split_masks(name, dim=8, k_max=2).double()
    with torch.no_grad():
        masks.weight.uniform_(0.5, 1.5)
        masks.weight[0, 2] = 0
    objective = Objective(loss.double(), masks, overlap_weight)
    objective(f, labels, 0).backward()
    return masks.weight.grad[0, 2].item(), masks.weight.grad[0, 3].item()


@pytest.mark.parametrize("name", ["relu", "projected", "straight_through"])
@pytest.mark.parametrize("loss", ["margin", "triplet", "soft_triplet", "npairs"])
def test_at_zero_the_losses_have_no_gradient_and_the_overlap_a_positive_one(name, loss):
    """Inner products depend on the square of the mask, so an entry at 0 does not come back, whatever the activation."""
    base = make_loss(loss, num_classes=6, dim=8)
    at_zero, elsewhere = gradient_at_zero(name, base, overlap_weight=0.0)
    assert at_zero == pytest.approx(0, abs=1e-14)
    assert abs(elsewhere) > 1e-6
    with_overlap, _ = gradient_at_zero(name, base, overlap_weight=1.0)
    assert (with_overlap > 1e-3) == (name != "relu")


@pytest.mark.parametrize("name", ["projected", "straight_through", "relu"])
def test_a_loss_with_proxies_has_a_gradient_at_zero(name):
    pytest.importorskip("pytorch_metric_learning")
    at_zero, _ = gradient_at_zero(name, make_loss("ProxyAnchorLoss", num_classes=6, dim=8), 0.0)
    assert (abs(at_zero) > 1e-3) == (name != "relu")
