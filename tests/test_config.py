import pytest
import yaml

from divconq.config import Config, from_yaml, to_yaml
from divconq.presets import PRESETS, preset


@pytest.mark.parametrize("name", PRESETS)
def test_a_config_survives_its_file(name):
    assert from_yaml(to_yaml(PRESETS[name])) == PRESETS[name]


def test_paths_tuples_and_arguments_survive_too(tmp_path):
    config = Config(
        root=tmp_path, backbone_weights=tmp_path / "w.safetensors", import_file=tmp_path / "m.py",
        mean=(0.1, 0.2, 0.3), loss_args={"alpha": 2, "tags": "x"}, ks=(1, 5),
    )  # fmt: skip
    assert from_yaml(to_yaml(config)) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k_max": 6}, "k_max must be a power of two, got 6; use 4 or 8"),
        ({"k_max": 0}, "k_max must be a power of two, got 0; use 1 or 2"),
        ({"masks": "fixed", "dim": 3, "k_max": 4}, "dim must be at least k_max = 4, got 3; raise --dim"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"batch": 1}, "batch must be at least 2, got 1"),
        ({"batch": 81, "per_class": 2}, "multiple of per_class = 2, got 81; use 80 or 82"),
        ({"lr": float("nan")}, "lr must be a positive number, got nan"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
        ({"resize": 200}, "resize must be at least image_size = 224, got 200"),
        ({"ks": ()}, "ks must be positive numbers"),
        ({"weight_decay": -1.0}, "weight_decay must be at least 0.0, got -1.0"),
    ],
)
def test_bad_values_are_refused_with_a_remedy(change, message):
    with pytest.raises(ValueError, match=message):
        Config(**change)


def test_unknown_settings_in_a_file_are_refused():
    text = yaml.safe_dump({**yaml.safe_load(to_yaml(Config())), "kmax": 3})
    with pytest.raises(ValueError, match="unknown settings kmax"):
        from_yaml(text)


def test_presets_hold_the_papers_table():
    table = {
        name: (p.lr, p.weight_decay, p.overlap_weight, p.k_max, p.divide_every, p.finetune_from, p.epochs,
               p.batch, p.per_class, p.augmentation, p.dim)
        for name, p in PRESETS.items()
    }  # fmt: skip
    assert table["cub-paper"] == (1e-5, 1e-3, 1.0, 4, 10, None, 120, 112, None, "geom+color", 512)
    assert table["cars"] == (1e-5, 1e-3, 1.0, 4, 10, None, 120, 112, None, "color-heavy", 512)
    assert table["inshop"] == (1e-5, 1e-4, 0.2, 8, 2, None, 400, 80, 2, "geom", 512)
    assert table["sop"] == (1e-5, 1e-4, 0.01, 32, 2, 80, 170, 80, 2, "standard", 512)
    assert table["vehicleid"] == (1e-5, 1e-4, 5e-4, 16, 2, 80, 170, 80, 2, "standard", 512)


def test_an_unknown_preset_names_the_nearest():
    with pytest.raises(ValueError, match=r"unknown preset 'cubs'.*did you mean 'cub'"):
        preset("cubs")
