import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from divconq.accel.folding import fold_batchnorm_, unfold_batchnorm_
from divconq.model import Embedder
from divconq.training import setup as job
from divconq.training.embedding import see_features


def randomise(network, seed=0):
    """Give every BatchNorm statistics and weights that are not 0 and 1, and every layer float64."""
    generator = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d) and module.track_running_stats:
            module.running_mean.normal_(0, 0.2, generator=generator)
            module.running_var.uniform_(0.5, 2, generator=generator)
            if module.affine:
                nn.init.uniform_(module.weight, 0.5, 1.5, generator=generator)
                nn.init.normal_(module.bias, 0, 0.2, generator=generator)
    return network.double().eval()


def random(*shape, seed=1):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def is_folded(network):
    return any("forward" in vars(module) for module in network.modules())


class Forks(nn.Module):
    """A network that uses the output of the convolution outside the BatchNorm too."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x):
        x = self.conv(x)
        return x + self.bn(x)


class ConvolvesTwice(Forks):
    def forward(self, x):
        return self.bn(self.conv(x)) + self.conv(x)


class NormalisesTwice(Forks):
    def forward(self, x):
        x = self.bn(self.conv(x))
        return x + self.bn(x)


class TwoNorms(Forks):
    def __init__(self):
        super().__init__()
        self.other = nn.BatchNorm2d(4)

    def forward(self, x):
        x = self.conv(x)
        return self.bn(x) + self.other(x)


class HidesTheMiddle(Forks):
    """An operation between the two that is not a module."""

    def forward(self, x):
        return self.bn(self.conv(x) * 2)


def conv_and_norm(*rest, **settings):
    return nn.Sequential(nn.Conv2d(4, 8, 3, **settings), nn.BatchNorm2d(8), *rest)


LAYERS = {
    "plain": {"bias": False},
    "bias": {"bias": True},
    "groups": {"groups": 2},
    "depthwise": {"groups": 4, "bias": False},
    "stride": {"stride": 2, "padding": 1},
    "dilation": {"dilation": 2, "padding": (2, 1)},
    "same": {"padding": "same", "bias": False},
}


@pytest.mark.parametrize("settings", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("activation", [nn.Identity(), nn.ReLU(inplace=True)], ids=["linear", "relu"])
def test_values_and_gradients_are_those_of_the_two_layers(settings, activation):
    plain = randomise(conv_and_norm(activation, **settings))
    folded = copy.deepcopy(plain)
    assert fold_batchnorm_(folded, random(1, 4, 9, 8)) == 1
    outcomes = []
    for network in (plain, folded):
        x = random(3, 4, 9, 8, seed=2).requires_grad_()
        y = network(x)
        (y * random(*y.shape, seed=3)).sum().backward()
        outcomes.append([y, x.grad, *(parameter.grad for parameter in network.parameters())])
    for expected, got in zip(*outcomes, strict=True):
        assert expected.abs().max() > 1e-3
        assert torch.allclose(got, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "pairs", "unlike"),
    [
        ("resnet18", 20, 0),
        ("resnet50d", 55, 0),
        ("tf_efficientnet_lite0", 44, 5),  # five convolutions have their own padding
        ("mobilenetv3_small_100", 34, 0),
    ],
)
def test_a_whole_network(name, pairs, unlike):
    timm = pytest.importorskip("timm")
    plain = randomise(timm.create_model(name, num_classes=0))
    folded = copy.deepcopy(plain)
    assert fold_batchnorm_(folded, random(1, 3, 64, 64)) == pairs
    assert sum(isinstance(module, nn.BatchNorm2d) for module in plain.modules()) == pairs + unlike
    x = random(2, 3, 64, 64, seed=2)
    with torch.no_grad():
        expected, got = plain(x), folded(x)
    assert expected.std() > 1e-3
    assert torch.allclose(got, expected, rtol=0, atol=1e-6 * expected.abs().max().item())


def test_batchnorm_with_an_activation_and_a_drop_inside():
    layers = pytest.importorskip("timm.layers")
    norm = layers.BatchNormAct2d(8, act_layer=nn.SiLU, drop_layer=nn.Dropout)
    plain = randomise(nn.Sequential(nn.Conv2d(4, 8, 3), norm))
    folded = copy.deepcopy(plain)
    assert fold_batchnorm_(folded, random(1, 4, 8, 8)) == 1
    x = random(2, 4, 8, 8, seed=2)
    assert torch.allclose(folded(x), plain(x), rtol=0, atol=1e-12)
    folded[1].drop.train()
    torch.manual_seed(0)
    y = folded(x)
    assert (y == 0).double().mean() > 0.3, "the drop still drops"


@pytest.mark.parametrize(
    "network",
    [
        Forks(),
        ConvolvesTwice(),
        NormalisesTwice(),
        TwoNorms(),
        HidesTheMiddle(),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False)),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4)),
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), nn.BatchNorm2d(4)),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4)),
    ],
    ids=[
        "forks", "conv-twice", "norm-twice", "two-norms", "between", "no-affine", "no-statistics", "relu", "reflect",
        "group",
    ],
)  # fmt: skip
@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "trained"])
def test_other_pairs_are_not_folded(network, fresh):
    """Also with fresh BatchNorm, which hardly changes its input, so that the output would not show it."""
    network = copy.deepcopy(network).double().eval()
    network = network if fresh else randomise(network)
    x = random(1, 3, 8, 8)
    before = network(x)
    assert fold_batchnorm_(network, x) == 0
    assert not is_folded(network)
    assert torch.equal(network(x), before)


def test_layers_next_to_a_fork_are_folded():
    network = randomise(nn.Sequential(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3), Forks()))
    x = random(1, 3, 9, 9)
    before = network(x)
    assert fold_batchnorm_(network, x) == 1
    assert torch.allclose(network(x), before, rtol=0, atol=1e-12)


def test_an_output_that_changes_unfolds_all():
    network = randomise(nn.Sequential(conv_and_norm(), nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)))
    network[1].register_forward_hook(lambda module, inputs, output: 2 * output)  # now runs after BatchNorm
    x = random(1, 4, 9, 9)
    before = network(x)
    assert fold_batchnorm_(network, x) == 0
    assert not is_folded(network)
    assert torch.equal(network(x), before)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_precision_is_folded_too(kind):
    network = randomise(conv_and_norm(nn.ReLU())).to(kind)
    x = random(2, 4, 9, 8).to(kind)
    before = network(x)
    assert fold_batchnorm_(network, x) == 1
    after = network(x)
    assert after.dtype == kind
    assert torch.allclose(after, before, atol=0.05)


def test_names_states_and_modes_stay_and_unfolding_restores():
    network = randomise(conv_and_norm(nn.Dropout(), bias=True)).train()
    network[1].eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    x = random(1, 4, 9, 8)
    modes = [module.training for module in network.modules()]
    expected = copy.deepcopy(network).eval()(x)
    assert fold_batchnorm_(network, x) == 1
    assert [module.training for module in network.modules()] == modes
    assert network.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert fold_batchnorm_(network, x) == 0, "a second time there is nothing left to fold"
    assert torch.allclose(network.eval()(x), expected, rtol=0, atol=1e-12)
    assert is_folded(network)
    unfold_batchnorm_(network)
    assert not is_folded(network)
    assert torch.equal(network(x), expected)


def test_it_follows_weights_that_are_loaded_later():
    network, other = randomise(conv_and_norm()), randomise(conv_and_norm(), seed=5)
    x = random(2, 4, 9, 8)
    fold_batchnorm_(network, x)
    network.load_state_dict(other.state_dict())
    assert torch.allclose(network(x), other(x), rtol=0, atol=1e-12)


def test_training_takes_the_same_steps():
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    backbone = randomise(timm.create_model("resnet18", num_classes=0))
    plain = Embedder(backbone, 512, 8, dropout=0.0).double().train()
    folded = copy.deepcopy(plain)
    assert fold_batchnorm_(folded, random(1, 3, 32, 32)) == 20
    starts = {name: value.clone() for name, value in plain.state_dict().items()}
    for network in (plain, folded):
        adam = torch.optim.Adam(network.parameters(), lr=1e-4)
        for step in range(5):
            adam.zero_grad()
            z = F.normalize(network(random(4, 3, 32, 32, seed=step)))
            (z[0] @ z[1] - z[2] @ z[3]).backward()
            adam.step()
    for name, value in plain.state_dict().items():
        assert torch.allclose(folded.state_dict()[name], value, rtol=0, atol=1e-8), name
    moved = {name for name, value in plain.state_dict().items() if not torch.equal(value, starts[name])}
    assert {name for name, _ in plain.named_parameters()} == moved, "the statistics stand still"


@pytest.mark.parametrize("freeze", [True, False])
def test_a_run_folds_batchnorm_only_while_it_is_frozen(tiny, freeze, monkeypatch):
    monkeypatch.setattr(job, "_compiles", lambda config, device: True)
    monkeypatch.setattr(job, "fast_features", see_features)  # the real one needs a GPU
    made = job.prepare(tiny.replace(backbone="resnet18", freeze_batchnorm=freeze))
    assert made.fast
    assert is_folded(made.model) is freeze
    norms = [module for module in made.model.train().modules() if isinstance(module, nn.BatchNorm2d)]
    assert {norm.training for norm in norms} == {not freeze}


@pytest.mark.gpu
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_gpu_folds_as_many(layout):
    timm = pytest.importorskip("timm")
    network = randomise(timm.create_model("resnet18", num_classes=0)).float().cuda().to(memory_format=layout)
    x = random(2, 3, 64, 64).float().cuda().contiguous(memory_format=layout)
    with torch.no_grad():
        expected = network(x)
        assert fold_batchnorm_(network, x[:1]) == 20
        assert torch.allclose(network(x), expected, rtol=0, atol=1e-2 * expected.abs().max().item())
