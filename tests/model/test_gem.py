import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from divconq.data.images.transform import Transform
from divconq.model import GeM, SmallNet, make_model
from divconq.runs.exported import load_model, save_model
from divconq.runs.folder import Run
from divconq.train import train
from divconq.training.optimizer import make_optimizer


def naive(x, p):
    """The definition, one channel after the other."""
    rows = [[sum(max(v, 1e-6) ** p for v in c.flatten().tolist()) / c.numel() for c in image] for image in x]
    return torch.tensor([[mean ** (1 / p) for mean in row] for row in rows])


def with_p(p, **options):
    pool = GeM(**options)
    nn.init.constant_(pool.p, p)
    return pool


def maps(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("p", [1.0, 2.5, 3.0, 6.0])
def test_it_equals_its_definition(p):
    x = maps(3, 5, 4, 6)
    assert torch.allclose(with_p(p)(x), naive(x, p), rtol=1e-5)


def test_p_1_is_the_average_of_a_map_without_negative_values():
    x = maps(2, 7, 5, 5).relu()
    assert torch.allclose(with_p(1.0)(x), x.mean((2, 3)), atol=2e-6)


def test_a_large_p_approaches_the_maximum():
    x = maps(2, 7, 5, 5).relu() * 100  # 300^200 overflows
    errors = [float((with_p(p)(x) / x.amax((2, 3)) - 1).detach().abs().max()) for p in (5.0, 50.0, 200.0)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.02


@pytest.mark.parametrize("p", [1.0, 3.0, 40.0])
def test_gradients_are_exact_and_finite(p):
    """Among the channels are one that is dead and one that is large; the maximum that is divided by has no part."""
    x = maps(2, 3, 3, 3).double().abs() + 0.1
    pool = with_p(p).double()
    assert torch.autograd.gradcheck(lambda x, p: torch.func.functional_call(pool, {"p": p}, x), (
        x.requires_grad_(), pool.p.detach().requires_grad_()
    ))  # fmt: skip
    x, pool = torch.stack([torch.zeros(4, 4), torch.full((4, 4), 1e4)])[None].requires_grad_(), with_p(p)
    pool(x).sum().backward()
    assert x.grad.isfinite().all()
    assert pool.p.grad.isfinite()


def test_it_computes_in_float32_under_autocast():
    x = maps(2, 3, 4, 4).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        pooled = GeM()(x)
    assert pooled.dtype == torch.float32
    assert torch.equal(pooled, GeM()(x.float()))


@pytest.mark.parametrize("backbone", ["resnet10t", "mobilenetv3_small_050", "convnext_atto", "small"])
def test_backbones_are_built_and_trained_with_it(backbone):
    model = make_model(backbone, 8, pooling="gem")
    pools = [module for module in model.modules() if isinstance(module, GeM)]
    assert len(pools) == 1
    assert make_model(backbone, 8)(torch.rand(2, 3, 64, 64)).shape == (2, 8)
    model(torch.rand(2, 3, 64, 64)).square().sum().backward()
    assert pools[0].p.grad != 0
    (network,) = make_optimizer(model, lr=1.0, weight_decay=0.0).param_groups
    assert any(parameter is pools[0].p for parameter in network["params"])


def test_with_p_1_a_network_is_that_with_average_pooling():
    torch.manual_seed(0)
    average = make_model("resnet10t", 8).eval()
    torch.manual_seed(0)
    gem = make_model("resnet10t", 8, pooling="gem").eval()
    x = torch.rand(2, 3, 64, 64)
    assert not torch.allclose(gem(x), average(x), atol=1e-3)
    nn.init.constant_(gem.backbone.global_pool.p, 1.0)
    assert torch.allclose(gem(x), average(x), atol=1e-4)


@pytest.mark.parametrize("backbone", ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"])
def test_networks_without_a_pooling_of_a_map_are_refused(backbone):
    with pytest.raises(
        ValueError, match=rf"'gem' needs a backbone that pools one .*'{backbone}' has no such"
    ):
        make_model(backbone, 8, pooling="gem")


def test_two_poolings_are_refused(monkeypatch):
    twice = nn.Sequential(*(timm.layers.SelectAdaptivePool2d(pool_type="avg") for _ in range(2)))
    monkeypatch.setattr(timm, "create_model", lambda *args, **options: twice)
    with pytest.raises(ValueError, match="has 2 such pooling"):
        make_model("resnet10t", 8, pooling="gem")


def test_weights_with_and_without_p_load(tmp_path):
    for pooling, p in (("avg", 3.0), ("gem", 4.5)):
        source = make_model("resnet10t", 8, pooling=pooling).backbone
        if pooling == "gem":
            nn.init.constant_(source.global_pool.p, p)
        state = {name: value.contiguous() for name, value in source.state_dict().items()}
        save_file(state, tmp_path / f"{pooling}.safetensors")
        loaded = make_model("resnet10t", 8, pooling="gem", weights=tmp_path / f"{pooling}.safetensors")
        assert loaded.backbone.global_pool.p == p
        assert torch.equal(loaded.backbone.layer1[0].conv1.weight, source.layer1[0].conv1.weight)
    del state["layer1.0.conv1.weight"]
    save_file(state, tmp_path / "cut.safetensors")
    with pytest.raises(ValueError, match="1 missing"):
        make_model("resnet10t", 8, pooling="gem", weights=tmp_path / "cut.safetensors")


def test_an_exported_model_keeps_p(tmp_path):
    model = make_model("small", 8, pooling="gem").eval()
    nn.init.constant_(model.backbone[-2].p, 2.0)
    settings = {"backbone": "small", "dim": 8, "pooling": "gem", "image_size": 32, "resize": 36}
    save_model(model, tmp_path / "model.safetensors", settings)
    x, loaded = torch.rand(2, 3, 32, 32), load_model(tmp_path / "model.safetensors")
    assert isinstance(loaded.transform, Transform)
    assert torch.equal(loaded(x), model(x))


def test_a_run_trains_p_and_opens_again(tiny, tmp_path):
    records = train(tiny.replace(pooling="gem", epochs=4, image_size=32, resize=36), tmp_path / "run")
    assert records[-1]["map@r"] > records[0]["map@r"]
    run, x = Run.open(tmp_path / "run"), torch.rand(2, 3, 32, 32)
    last = run.model("last")
    assert abs(last.backbone[-2].p - 3) > 1e-3
    (tmp_path / "run" / "model.safetensors").unlink()
    assert torch.allclose(run.model("last")(x), last(x), atol=1e-6)


def test_the_first_weights_do_not_depend_on_the_pooling():
    first = []
    for pooling in ("avg", "gem"):
        torch.manual_seed(0)
        first.append(SmallNet(pooling)[0].weight)
    assert torch.equal(*first)
