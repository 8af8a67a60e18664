import copy

import pytest
import torch
from torch import nn

from divconq.divide_and_conquer import DivideAndConquer, reset_moments
from divconq.masks import Masks
from divconq.model import Embedder, SmallNet
from divconq.training.optimizer import OPTIMIZERS, load_optimizer, make_optimizer


def test_norm_layers_have_own_weight_decay():
    network = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Sequential(nn.GroupNorm(2, 4)), nn.Linear(4, 2)
    )
    adam = make_optimizer(network, lr=1e-5, weight_decay=1e-3, norm_weight_decay=0.0)
    groups = {group["name"]: group for group in adam.param_groups}
    assert {name: group["weight_decay"] for name, group in groups.items()} == {"network": 1e-3, "norms": 0.0}
    assert groups["norms"]["params"] == [*network[1].parameters(), *network[2].parameters()]
    assert groups["network"]["params"] == [*network[0].parameters(), *network[3].parameters()]
    assert groups["norms"]["lr"] == groups["network"]["lr"]


def test_head_has_own_learning_rate():
    network = Embedder(SmallNet(), SmallNet.num_features, 4)
    adam = make_optimizer(network, lr=1e-5, weight_decay=1e-3, head_lr_scale=10.0)
    groups = {group["name"]: group for group in adam.param_groups}
    assert {name: group["lr"] for name, group in groups.items()} == {"network": 1e-5, "head": 1e-4}
    assert groups["head"]["params"] == [*network.head.parameters()]
    assert groups["network"]["params"] == [*network.backbone.parameters()]


def test_reset_moments_resets_only_the_masks():
    network, masks = nn.Linear(2, 4), Masks(4, 2)
    masks.split_()  # before that, masks get no gradient
    adam = with_masks(make_optimizer(network, lr=1e-4, weight_decay=0), masks)

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


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_steps_are_those_of_the_papers(kind):
    """Kingma and Ba (2015) with the decay in the gradient, Loshchilov and Hutter (2019) with a decay of its own."""
    lr, decay, beta1, beta2, eps = 0.01, 0.5, 0.9, 0.999, 1e-8
    layer = nn.Linear(1, 1, bias=False).double()
    optimizer = make_optimizer(layer, lr=lr, weight_decay=decay, kind=kind)
    w, m, v = layer.weight.item(), 0.0, 0.0
    for t, slope in enumerate((3.0, -1.0, 0.5), 1):
        optimizer.zero_grad()
        (slope * layer.weight).sum().backward()
        optimizer.step()
        g = slope + decay * w if kind == "adam" else slope
        w = w - lr * decay * w if kind == "adamw" else w
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        w -= lr * (m / (1 - beta1**t)) / ((v / (1 - beta2**t)) ** 0.5 + eps)
        assert layer.weight.item() == pytest.approx(w, abs=1e-12)


def test_adamw_equals_that_of_torch_in_all_groups():
    torch.manual_seed(0)
    network = Embedder(SmallNet(), SmallNet.num_features, 4)
    twin = copy.deepcopy(network)
    made = make_optimizer(
        network, lr=1e-3, weight_decay=0.2, norm_weight_decay=0.0, head_lr_scale=3.0, kind="adamw"
    )
    norms = [p for m in twin.modules() if isinstance(m, nn.GroupNorm) for p in m.parameters()]
    known = {*norms, *twin.head.parameters()}
    expected = torch.optim.AdamW(
        [
            {"params": [p for p in twin.parameters() if p not in known]},
            {"params": norms, "weight_decay": 0.0},
            {"params": [*twin.head.parameters()], "lr": 3e-3},
        ],
        lr=1e-3,
        weight_decay=0.2,
    )
    x = torch.rand(2, 3, 32, 32)
    for model, optimizer in ((network, made), (twin, expected)):
        model.eval()
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
    for name, value in twin.state_dict().items():
        assert torch.equal(network.state_dict()[name], value), name


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_the_algorithm_adds_its_groups_to_both(kind):
    network = nn.Linear(2, 4)
    optimizer = make_optimizer(network, lr=1e-4, weight_decay=0.3, kind=kind)
    loss, labels = nn.Linear(4, 1), torch.arange(8) % 2
    dc = DivideAndConquer(
        lambda z, y: loss(z).sum(), labels, optimizer, dim=4, batch=4, k_max=2, mask_lr=0.5,
        mask_weight_decay=0.25,
    )  # fmt: skip
    assert isinstance(optimizer, OPTIMIZERS[kind])
    assert [(group["name"], group["lr"], group["weight_decay"]) for group in optimizer.param_groups] == [
        ("network", 1e-4, 0.3),
        ("masks", 0.5, 0.25),
    ]
    dc(network(torch.rand(4, 2)), labels[:4], 0).backward()
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    reset_moments(optimizer, dc.masks)
    assert not any(value.any() for value in optimizer.state[dc.masks.weight].values())
    load_optimizer(optimizer, saved)
    assert any(value.any() for value in optimizer.state[dc.masks.weight].values())
    assert optimizer.param_groups[0]["weight_decay"] == 0.3


def with_masks(adam, masks):
    """Add the masks as a parameter group with 100 times the learning rate, as training does."""
    adam.add_param_group({"params": [*masks.parameters()], "lr": 100 * adam.param_groups[0]["lr"]})
    return adam


def trained(device="cpu", lr=1e-4):
    """Return Adam after three steps, and the modules that it trains."""
    torch.manual_seed(0)
    network, masks = nn.Linear(2, 4).to(device), Masks(4, 2).to(device)
    masks.split_()  # before that, masks get no gradient
    adam = with_masks(make_optimizer(network, lr=lr, weight_decay=0), masks)
    take_steps(adam, network, masks, 3)
    return adam, network, masks


def take_steps(adam, network, masks, count):
    for i in range(count):
        adam.zero_grad()
        x = torch.full((1, 2), 1.0 + i, device=network.weight.device)
        (network(x) * masks.conquer()).square().sum().backward()
        adam.step()


def test_load_restores_moments_and_keeps_rates():
    other_rate, *_ = trained(lr=1e-4)
    source, network, masks = trained(lr=3e-3)
    load_optimizer(other_rate, copy.deepcopy(source.state_dict()))
    assert [group["lr"] for group in other_rate.param_groups] == [1e-4, 1e-2]
    adam, other, other_masks = trained(lr=3e-3)
    take_steps(adam, other, other_masks, 1)
    load_optimizer(adam, copy.deepcopy(source.state_dict()))
    other.load_state_dict(network.state_dict())
    other_masks.load_state_dict(masks.state_dict())
    take_steps(source, network, masks, 2)
    take_steps(adam, other, other_masks, 2)
    assert torch.equal(network.weight, other.weight)
    assert torch.equal(masks.weight, other_masks.weight)


def test_load_keeps_device_options():
    saved, *_ = trained()
    state = saved.state_dict()
    for group in state["param_groups"]:
        group |= {"fused": True, "capturable": True}  # as a GPU's have it
    before = [dict(group) for group in state["param_groups"]]
    adam, *_ = trained()
    load_optimizer(adam, state)
    assert [(group["fused"], group["capturable"]) for group in adam.param_groups] == 2 * [(None, False)]
    assert state["param_groups"] == before, "what was given is not changed"


def test_different_parameter_groups_are_refused():
    adam = make_optimizer(nn.Linear(2, 4), lr=1e-5, weight_decay=0)
    with pytest.raises(ValueError, match="zip"):
        load_optimizer(adam, trained()[0].state_dict())


@pytest.mark.gpu
@pytest.mark.parametrize(("saved_on", "loaded_on"), [("cpu", "cuda"), ("cuda", "cpu"), ("cuda", "cuda")])
def test_state_moves_between_devices(saved_on, loaded_on):
    source, network, masks = trained(saved_on)
    adam, other, other_masks = trained(loaded_on)
    load_optimizer(adam, copy.deepcopy(source.state_dict()))
    other.load_state_dict(network.state_dict())
    other_masks.load_state_dict(masks.state_dict())
    on_gpu = loaded_on == "cuda"
    for group in adam.param_groups:
        assert bool(group["fused"]) == group["capturable"] == on_gpu
    for parameter, state in adam.state.items():
        assert state["exp_avg"].device == parameter.device
        assert state["step"].is_cuda == on_gpu
    take_steps(source, network, masks, 3)
    take_steps(adam, other, other_masks, 3)
    assert torch.allclose(network.weight.cpu(), other.weight.cpu(), rtol=0, atol=1e-6)
    assert torch.allclose(masks.weight.cpu(), other_masks.weight.cpu(), rtol=0, atol=1e-6)
