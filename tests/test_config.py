import dataclasses
import math
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch
import yaml

from divconq.config import (
    PLACES,
    Config,
    DataConfig,
    EvaluationConfig,
    MasksConfig,
    OptimisationConfig,
    from_yaml,
    plain_settings,
    to_yaml,
    upgraded,
)
from divconq.divide_and_conquer import DivideAndConquer
from divconq.losses import TripletLoss
from divconq.presets import PRESETS, preset

NAN, INF = float("nan"), float("inf")
MESSAGES = [
    # types
    ({"image_size": "224"}, "image_size must be a whole number, got '224'"),
    ({"epochs": True}, "epochs must be a whole number, got True"),
    ({"epochs": 2.0}, "epochs must be a whole number, got 2.0"),
    ({"lr": "1e-5"}, "lr must be a number, got '1e-5'"),
    ({"nmi": 1}, "nmi must be true or false, got 1"),
    ({"data": Path("photos")}, "data must be a string, got PosixPath"),
    ({"root": 3}, "root must be a path, got 3"),
    ({"loss_args": [1]}, "loss_args must be a table of names and values, got [1]"),
    ({"crop_scale": (0.5,)}, "crop_scale must be a list of 2, got (0.5,)"),
    ({"ks": 1}, "ks must be a list, got 1"),
    ({"ks": ("1",)}, "ks must be a whole number, got '1'"),
    ({"ks": ()}, "ks must be a list of at least one value, got none"),
    # choices
    ({"device": "gpu"}, "device must be one of auto, cpu, cuda, got 'gpu'; did you mean 'cuda'?"),
    ({"std": (0.0, 0.0, 0.0)}, "std must be above 0, got 0.0"),
    ({"dim": 10**12}, "dim must be at most 65536, got 1000000000000"),
    ({"seed": 2**70}, "seed must be at most 9223372036854775807"),
    (
        {"masks": "fix"},
        "masks must be one of learned, fixed, rotating, none, got 'fix'; did you mean 'fixed'?",
    ),
    ({"division": "tree"}, "division must be one of progressive, flat, random, random-again, labels, got"),
    ({"cluster_steps": "even"}, "cluster_steps must be one of proportional, equal, got 'even'"),
    ({"epoch_length": "big"}, "epoch_length must be one of images, largest, smallest, got 'big'"),
    ({"class_sampling": "class"}, "class_sampling must be one of images, classes, got 'class'"),
    ({"division": "random_again"}, "got 'random_again'; did you mean 'random-again'?"),
    (
        {"schedule": "cosin"},
        "schedule must be one of constant, cosine, step, got 'cosin'; did you mean 'cosine'?",
    ),
    ({"optimizer": "sgd"}, "optimizer must be one of adam, adamw, got 'sgd'"),
    ({"same_camera": None}, "same_camera must be one of drop, keep, got None"),
    # ranges
    ({"k_max": 6}, "k_max must be a power of two, got 6; use 4 or 8"),
    ({"k_max": 0}, "k_max must be a power of two, got 0; use 1 or 2"),
    ({"epochs": 0}, "epochs must be at least 1, got 0; the default is 120"),
    ({"batch": 1}, "batch must be at least 2, got 1"),
    ({"per_class": 1}, "per_class must be at least 2, got 1"),
    ({"finetune_from": -1}, "finetune_from must be at least 0, got -1"),
    ({"lr": 0.0}, "lr must be above 0, got 0.0"),
    ({"lr": NAN}, "lr must be a finite number, got nan"),
    ({"save_minutes": INF}, "save_minutes must be a finite number, got inf"),
    ({"crop_scale": (0.5, NAN)}, "crop_scale must be a finite number, got nan"),
    ({"dropout": 1.0}, "dropout must be below 1, got 1.0"),
    ({"test_classes": 0.0}, "test_classes must be above 0, got 0.0"),
    ({"weight_decay": -1.0}, "weight_decay must be at least 0, got -1.0"),
    ({"norm_weight_decay": -1.0}, "norm_weight_decay must be at least 0, got -1.0"),
    ({"mask_weight_decay": -1}, "mask_weight_decay must be at least 0, got -1.0"),
    ({"eval_every": 0}, "eval_every must be at least 1, got 0"),
    ({"ema": 0.0}, "ema must be above 0, got 0.0"),
    ({"ema": 1.0}, "ema must be below 1, got 1.0"),
    ({"lr_drop": 0.0}, "lr_drop must be above 0, got 0.0"),
    ({"lr_drop": 1.5}, "lr_drop must be at most 1, got 1.5"),
    ({"lr_drop_every": 0}, "lr_drop_every must be at least 1, got 0; the default is 10"),
    ({"warmup_epochs": -1.0}, "warmup_epochs must be at least 0, got -1.0"),
    ({"ks": (1, 0)}, "ks must be at least 1, got 0"),
    ({"nmi_runs": 0}, "nmi_runs must be at least 1, got 0; the default is 1"),
    # far beyond what is useful
    ({"k_max": 2**62}, "k_max must be at most 4096, got 4611686018427387904"),
    ({"image_size": 10**9}, "image_size must be at most 4096, got 1000000000"),
    ({"resize": 10**9}, "resize must be at most 4096"),
    ({"epochs": 10**18}, "epochs must be at most 1000000, got 1000000000000000000"),
    ({"divide_every": 10**18}, "divide_every must be at most 1000000000"),
    ({"batch": 10**12}, "batch must be at most 1000000"),
    ({"workers": 10**9}, "workers must be at most 1024"),
    ({"ks": (1, 10**12)}, "ks must be at most 1000000000, got 1000000000000"),
    ({"val_classes": 10**12}, "val_classes must be at most 1000000000"),
    ({"lr": 1e300}, "lr must be at most 1000, got 1e+300"),
    ({"overlap_weight": 1e300}, "overlap_weight must be at most 1000000000, got 1e+300"),
    ({"save_minutes": 1e300}, "save_minutes must be at most 1000000000"),
    ({"epochs": 10**5000}, "epochs must be at most 1000000, got a number of too many digits"),
    ({"std": (0.2, 0.2, -0.2)}, "std must be above 0, got -0.2"),
    ({"mean": (123.7, 116.3, 103.5)}, "mean must be at most 1, got 123.7"),
    ({"crop_scale": (-0.5, 1.0)}, "crop_scale must be above 0, got -0.5"),
    ({"crop_scale": (0.5, 2.0)}, "crop_scale must be at most 1, got 2.0"),
    ({"loss_args": {"beta": NAN}}, "loss_args must be a finite number, got nan"),
    ({"miner_args": {"margin": {1, 2}}}, "miner_args must be a table of numbers, strings, lists and tables"),
    ({"loss_args": {3: 4}}, "loss_args must be a table of names and values, got the name 3"),
    # several settings
    ({"masks": "fixed", "dim": 3, "k_max": 4}, "dim must be at least k_max = 4, got 3; raise --dim"),
    (
        {"batch": 81, "per_class": 2},
        "batch must be a multiple of per_class = 2 and at least twice as large, got 81; use 80 or 82",
    ),
    (
        {"batch": 2, "per_class": 4},
        "batch must be a multiple of per_class = 4 and at least twice as large, got 2; use 8 or 12",
    ),
    (
        {"class_sampling": "classes"},
        "class_sampling must be images without per_class, got 'classes'; set --per-class, for example to 2, or",
    ),
    (
        {"warmup_epochs": 4, "epochs": 4},
        "warmup_epochs must be below epochs = 4, got 4.0; lower --warmup-epochs or raise --epochs",
    ),
    ({"resize": 200}, "resize must be at least image_size = 224, got 200"),
    (
        {"decode_size": 240},
        "decode_size must be at least resize = 256, got 240; raise --decode-size, or leave",
    ),
    ({"decode_size": 10**9}, "decode_size must be at most 4096"),
    (
        {"val_groups": True},
        "val_groups needs a number of classes to hold out: val_classes must be at least 1, got 0; use",
    ),
]


@pytest.mark.parametrize(("change", "message"), MESSAGES)
def test_bad_values_are_refused_with_a_remedy(change, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        Config.of(**change)
    assert message in str(error.value)


@pytest.mark.parametrize(("change", "message"), MESSAGES)
def test_a_section_refuses_in_the_same_words(monkeypatch, change, message):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # so that our own errors are reached
    sections = {}
    for name, value in change.items():
        section, item = PLACES[name]
        sections.setdefault(section, {})[item.name] = value

    def make():
        return Config(**{name: type(getattr(Config(), name))(**some) for name, some in sections.items()})

    with pytest.raises(ValueError) as error:  # noqa: PT011
        make()
    assert message in str(error.value)


def test_settings_are_set_by_section_or_by_flat_name():
    config = Config(
        data=DataConfig(name="cub", image_size=100),
        masks=MasksConfig(kind="fixed", lr_scale=2),
        optimisation=OptimisationConfig(seed=3),
        evaluation=EvaluationConfig(every=2),
    )
    changes = {"data": "cub", "image_size": 100, "masks": "fixed", "mask_lr_scale": 2, "seed": 3}
    assert config == Config.of(**changes, eval_every=2)
    assert list(config.settings()) == list(PLACES), "the order of the declaration"
    assert Config.of(**config.settings()) == config
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.data.name = "cars"


def test_lists_strings_and_whole_numbers_become_the_type_of_the_setting():
    config = Config.of(ks=[1, 10], root="data", lr=1)
    assert (config.evaluation.ks, config.data.root, config.optimisation.lr) == ((1, 10), Path("data"), 1.0)


def test_unknown_settings_name_the_nearest():
    with pytest.raises(ValueError, match="unknown setting 'kmax'; did you mean 'k_max'"):
        Config.of(kmax=3)
    with pytest.raises(ValueError, match="unknown setting 'zzz'; divconq train --help lists all"):
        Config().replace(zzz=3)


def test_a_setting_in_place_of_a_section_is_refused(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=r"data must be a DataConfig, got 'cub'; .* use Config.of"):
        Config(data="cub")


@pytest.mark.parametrize("name", PRESETS)
def test_a_config_survives_its_file(name):
    assert from_yaml(to_yaml(PRESETS[name])) == PRESETS[name]


def test_paths_tuples_and_arguments_survive_too(tmp_path):
    config = Config.of(
        root=tmp_path, backbone_weights=tmp_path / "w.safetensors", import_file=tmp_path / "m.py",
        crop_scale=(0.1, 0.2), loss_args={"alpha": 2, "tags": "x", "number": "1e5"}, ks=(1, 5),
    )  # fmt: skip
    assert from_yaml(to_yaml(config)) == config
    assert yaml.safe_load(to_yaml(config))["evaluation"]["ks"] == [1, 5]


@pytest.mark.parametrize("name", PRESETS)
def test_a_flat_file_of_an_older_version_is_read(name):
    old = yaml.safe_dump(plain_settings(PRESETS[name]))
    assert from_yaml(old) == PRESETS[name]


def test_arguments_of_the_margin_loss_are_translated():
    old = {"loss": "margin", "loss_args": {"apart": True, "even": False, "beta": 1.0}}
    new = {"without_replacement": True, "equal_pairs": False, "beta": 1.0}
    assert upgraded(old) == {"loss": "margin", "loss_args": new}
    assert upgraded({**old, "loss": "mine"}) == {**old, "loss": "mine"}


def test_unknown_settings_in_a_file_are_refused():
    values = yaml.safe_load(to_yaml(Config()))
    with pytest.raises(ValueError, match="unknown settings kmax"):
        from_yaml(yaml.safe_dump({**values, "kmax": 3}))
    with pytest.raises(ValueError, match=r"unknown settings masks\.kid"):
        from_yaml(yaml.safe_dump({**values, "masks": {"kid": "fixed"}}))


def test_presets_hold_the_papers_table():
    settings = ("lr", "weight_decay", "overlap_weight", "k_max", "divide_every", "finetune_from", "epochs")
    settings += ("batch", "per_class", "augmentation", "dim")
    table = {
        name: tuple(config.settings()[setting] for setting in settings) for name, config in PRESETS.items()
    }
    assert table["cub-paper"] == (1e-5, 1e-3, 1.0, 4, 10, None, 120, 112, None, "geom+color", 512)
    assert table["cars"] == (1e-5, 1e-3, 1.0, 4, 10, None, 120, 112, None, "color-heavy", 512)
    assert table["inshop"] == (1e-5, 1e-4, 0.2, 8, 2, None, 400, 80, 2, "geom", 512)
    assert table["sop"] == (1e-5, 1e-4, 0.01, 32, 2, 80, 170, 80, 2, "standard", 512)
    assert table["vehicleid"] == (1e-5, 1e-4, 5e-4, 16, 2, 80, 170, 80, 2, "standard", 512)


def test_an_unknown_preset_names_the_nearest():
    with pytest.raises(ValueError, match=r"unknown preset 'cubs'.*did you mean 'cub'"):
        preset("cubs")


def test_numbers_that_python_accepts_become_plain_floats():
    config = Config.of(lr=np.float64(1e-3), weight_decay=1)
    assert type(config.optimisation.lr) is type(config.optimisation.weight_decay) is float
    assert from_yaml(to_yaml(config)) == config
    with pytest.raises(ValueError, match="lr must be a finite number, got one too large"):
        Config.of(lr=10**400)


def test_a_run_that_never_saved_by_the_clock_still_opens():
    old = {**plain_settings(Config()), "save_minutes": math.inf}
    assert from_yaml(yaml.safe_dump(old)).runtime.save_minutes == 1e9


def test_numbers_of_numpy_become_plain():
    config = Config.of(
        k_max=np.int64(8), dropout=np.float32(0.5), loss_args={"alpha": np.float64(0.5), "n": np.int8(3)}
    )
    assert [type(x) for x in (config.division.k_max, config.model.dropout)] == [int, float]
    assert [type(x) for x in config.loss.args.values()] == [float, int]
    assert from_yaml(to_yaml(config)) == config


def test_the_largest_settings_do_not_overflow():
    """The loss of a batch stays finite with the largest weights, and so do the products with lr."""
    largest = Config.of(overlap_weight=1e9, mask_lr_scale=1e9, loss_lr_scale=1e9, head_lr_scale=1e9, lr=1000)
    dc = DivideAndConquer(
        TripletLoss(), torch.arange(40) % 4, dim=8, batch=8, k_max=2, overlap_weight=largest.masks.overlap_weight,
        mask_lr=largest.optimisation.lr * largest.masks.lr_scale,
    )  # fmt: skip
    dc.masks.split_()
    loss = dc(torch.randn(8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 4, 0)
    assert loss.isfinite()
