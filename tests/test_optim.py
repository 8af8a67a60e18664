import torch
from torch import nn

from divconq.losses import NPairsLoss
from divconq.masks import Masks
from divconq.optim import make_optimizer, reset_moments


def test_three_groups_with_their_own_rates():
    adam = make_optimizer(
        nn.Linear(2, 4),
        Masks(4, 2),
        NPairsLoss(),
        lr=1e-5,
        weight_decay=1e-3,
        mask_lr_scale=100,
        mask_weight_decay=1e-4,
        loss_lr_scale=10,
    )
    groups = {group["name"]: (group["lr"], group["weight_decay"]) for group in adam.param_groups}
    assert groups == {"network": (1e-5, 1e-3), "masks": (1e-3, 1e-4), "loss": (1e-4, 0.0)}


def test_masks_that_do_not_learn_have_no_group():
    adam = make_optimizer(nn.Linear(2, 4), Masks(4, 2, "fixed"), nn.Identity(), lr=1e-5, weight_decay=0)
    assert [group["name"] for group in adam.param_groups] == ["network"]


def test_reset_starts_the_masks_anew_and_nothing_else():
    network, masks = nn.Linear(2, 4), Masks(4, 2)
    adam = make_optimizer(network, masks, nn.Identity(), lr=1e-4, weight_decay=0)

    def step():
        adam.zero_grad()
        (network(torch.ones(1, 2)) * masks.conquer()).square().sum().backward()
        adam.step()

    step()
    kept = adam.state[network.weight]["exp_avg"].clone()
    reset_moments(adam, masks)
    assert not any(value.any() for value in adam.state[masks.weight].values())
    assert torch.equal(adam.state[network.weight]["exp_avg"], kept)
    before = masks.weight.detach().clone()
    step()
    moved = (masks.weight - before)[0].abs()
    assert torch.allclose(moved, torch.full_like(moved, 1e-2), rtol=1e-3), (
        "a first step of Adam has the length of the rate"
    )
