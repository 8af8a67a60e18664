"""While K = 1 the mask is ones, whatever the parameter holds."""

import pytest
import torch
from torch import nn

from divconq import DivideAndConquer
from divconq.losses import NPairsLoss
from divconq.masks import MASK_ACTIVATIONS, Masks

NAMES = list(MASK_ACTIVATIONS)


@pytest.mark.parametrize("name", NAMES)
def test_the_mask_is_ones_and_gets_no_gradient(name):
    masks, f = Masks(4, 4, activation=name), torch.randn(3, 4)
    nn.init.normal_(masks.weight)
    for cluster in (0, torch.tensor(0)):
        assert torch.equal(masks.select(f, cluster), f)
    assert torch.equal(masks.conquer(), torch.ones(4))
    assert torch.equal(masks.active(), torch.ones(1, 4))
    assert masks.overlap() == 0
    assert masks.dead() == 0
    value = masks.select(f, 0).sum() + masks.conquer().sum() + masks.overlap()
    value.backward()
    assert not masks.weight.grad.any()
    masks.split_()
    torch.testing.assert_close(masks.active(), torch.ones(2, 4))


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("optimiser", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("name", NAMES)
def test_a_division_after_many_steps_is_as_if_it_came_at_once(name, optimiser, reset):
    """Weight decay and Adam's moments from before the first division have no effect."""

    def trained(steps_before):
        torch.manual_seed(0)
        network = nn.Linear(3, 4)
        optimizer = optimiser(network.parameters(), lr=0.0)
        dc = DivideAndConquer(
            NPairsLoss(),
            torch.arange(16) % 4,
            optimizer,
            dim=4,
            batch=8,
            k_max=2,
            division="random",
            mask_activation=name,
            mask_lr=1e-2,
            mask_weight_decay=0.5,
            mask_reset=reset,
            loss_lr=0.0,
        )
        x = torch.randn(8, 3)

        def steps(count):
            for i in range(count):
                optimizer.zero_grad()
                dc(network(x), torch.arange(8) % 4, i % dc.masks.k).backward()
                optimizer.step()

        steps(steps_before)
        dc.divide(None, epoch=1)
        torch.testing.assert_close(dc.masks.active(), torch.ones(2, 4))
        steps(6)
        return dc.masks.active().detach()

    moved = trained(0)
    assert (moved - 1).abs().max() > 1e-3, "masks learn after the division"
    assert torch.equal(moved, trained(20))


@pytest.mark.parametrize("kind", ["learned", "fixed"])
def test_with_one_cluster_masks_change_nothing(kind):
    f = torch.randn(5, 4, requires_grad=True)
    dc = DivideAndConquer(NPairsLoss(), torch.arange(5) % 2, dim=4, batch=4, k_max=1, masks=kind)
    plain = nn.functional.normalize(f)
    assert torch.equal(dc.conquer(f), plain)
    assert torch.equal(dc(f, torch.tensor([0, 0, 1, 1, 0]), 0), dc.loss(plain, torch.tensor([0, 0, 1, 1, 0])))
