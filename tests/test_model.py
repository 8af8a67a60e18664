import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from divconq.config import Config
from divconq.model import Embedder, SmallNet, import_file, make_model
from divconq.runs.folder import Run
from divconq.trained_run import TrainedRun


def test_batchnorm_keeps_its_statistics_but_its_weights_train():
    model = make_model("resnet10t", 8).train()
    norm = next(m for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    before = norm.running_mean.clone()
    model(torch.rand(2, 3, 64, 64)).sum().backward()
    assert torch.equal(norm.running_mean, before)
    assert norm.weight.grad.abs().sum() > 0
    assert model.dropout.training


def test_live_batchnorm_on_request():
    model = make_model("resnet10t", 8, freeze_batchnorm=False).train()
    norm = next(m for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    before = norm.running_mean.clone()
    model(torch.rand(2, 3, 64, 64))
    assert not torch.equal(norm.running_mean, before)


@pytest.mark.parametrize("pooling", ["avg", "max", "avgmax"])
def test_pooling(pooling):
    assert make_model("resnet10t", 8, pooling=pooling)(torch.rand(1, 3, 64, 64)).shape == (1, 8)


@pytest.mark.parametrize("backbone", ["vit_tiny_patch16_224", "mobilenetv3_small_050", "convnext_atto"])
def test_backbones_of_other_families(backbone):
    assert make_model(backbone, 8).eval()(torch.rand(1, 3, 224, 224)).shape == (1, 8)


def test_folding_a_mask_equals_masking():
    model, mask, x = Embedder(SmallNet(), 160, 8).eval(), torch.rand(8), torch.rand(4, 3, 32, 32)
    expected = model(x) * mask
    assert torch.allclose(model.fold_(mask)(x), expected, atol=1e-6)


def test_local_weights_with_colours_in_their_metadata(tmp_path):
    source = make_model("resnet10t", 8).backbone
    state = {name: value.half() if value.ndim == 4 else value for name, value in source.state_dict().items()}
    state["fc.weight"] = torch.zeros(1000, 512)  # weights of a classifier are skipped
    save_file(state, tmp_path / "w.safetensors", {"mean": "0.1,0.2,0.3", "std": "1,1,1"})
    model = make_model("resnet10t", 8, weights=tmp_path / "w.safetensors", std=(2.0, 2.0, 2.0))
    assert model.mean.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert model.std.flatten().tolist() == [2.0, 2.0, 2.0], "what the user says comes first"
    weight = dict(model.backbone.named_parameters())["conv1.0.weight"]
    assert weight.dtype == torch.float32
    assert torch.allclose(weight, dict(source.named_parameters())["conv1.0.weight"], atol=1e-3)


def test_weights_of_another_network_are_refused(tmp_path):
    save_file(SmallNet().state_dict(), tmp_path / "w.safetensors", {"architecture": "small"})
    with pytest.raises(ValueError, match=r"does not fit the backbone .*made for 'small': set --backbone"):
        make_model("resnet10t", 8, weights=tmp_path / "w.safetensors")


def test_damaged_weights_are_refused(tmp_path):
    (tmp_path / "w.safetensors").write_bytes(b"not weights")
    with pytest.raises(ValueError, match="is not a whole safetensors file"):
        make_model("resnet10t", 8, weights=tmp_path / "w.safetensors")


def test_unknown_backbone_names_the_nearest():
    with pytest.raises(ValueError, match=r"unknown backbone 'resnet5o'.*did you mean.*resnet50"):
        make_model("resnet5o", 8)


def test_a_failed_download_is_a_clear_error(monkeypatch):
    import timm

    def offline(name, pretrained, **rest):
        raise OSError("no route to host")

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(ValueError, match=r"could not be downloaded.*--backbone-weights"):
        make_model("resnet10t", 8, pretrained=True)


def test_a_backbone_of_the_user_works_by_name(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import timm\n"
        "from timm.models import register_model\n"
        "@register_model\n"
        "def my_very_own_net(pretrained=False, **kwargs):\n"
        "    return timm.create_model('resnet10t', **kwargs)\n"
    )
    with pytest.raises(ValueError, match="unknown backbone"):
        make_model("my_very_own_net", 8)
    import_file(tmp_path / "mine.py")
    assert make_model("my_very_own_net", 8)(torch.rand(1, 3, 64, 64)).shape == (1, 8)


def test_a_file_is_executed_once_per_process_unless_it_failed(tmp_path):
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "counted.py").write_text(
            f"from pathlib import Path\nlog = Path({str(tmp_path / 'log')!r})\n"
            f"log.write_text((log.read_text() if log.exists() else '') + '{folder} ')\n"
        )
    for folder in ("one", "one", "other"):
        import_file(tmp_path / folder / "counted.py")
    assert (tmp_path / "log").read_text() == "one other "
    broken = tmp_path / "broken.py"
    broken.write_text("raise RuntimeError('not yet')")
    for _ in range(2):
        with pytest.raises(ValueError, match="not yet"):
            import_file(broken)


def test_a_trained_run_is_opened_by_a_string_or_a_path(tmp_path):
    config = Config.of(backbone="small", pretrained=False, dim=8)
    Run.create(tmp_path / "run", config).export(make_model("small", 8), torch.ones(8))
    for folder in (tmp_path / "run", str(tmp_path / "run")):
        assert TrainedRun(folder, device="cpu").config == config
