"""The presets ``*-authors`` hold the authors' regime, and train a miniature of their dataset."""

import math
from functools import partial

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file
from scipy.io import savemat
from test_benchmarks import FIELDS, cell, records, write

from divconq.data.batches.augmentation import AUGMENTATIONS
from divconq.data.sources.official_layout import Count
from divconq.data.sources.registry import READERS
from divconq.division.schedule import divides
from divconq.presets import PRESETS, preset
from divconq.recorder import Recorder
from divconq.runs.folder import Run
from divconq.train import train

CLASSES, TEST_CLASSES, IMAGES = 8, 4, 4  # the classes of training come first
EVERY = [(label, number) for label in range(CLASSES + TEST_CLASSES) for number in range(IMAGES)]
ALL = {"train": Count(CLASSES, CLASSES * IMAGES), "test": Count(TEST_CLASSES, TEST_CLASSES * IMAGES)}


def save(root, paths):
    """One photo for each of ``EVERY``: each class has its colour, each image its noise."""
    random = np.random.default_rng(0)
    colours = random.integers(40, 215, (CLASSES + TEST_CLASSES, 3))
    for (label, _), path in zip(EVERY, paths, strict=True):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        pixels = (colours[label] + random.normal(0, 25, (24, 28, 3))).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(root / path)


def make_cub(root):
    paths = [f"{label + 1:03d}.Bird_{label}/{number}.jpg" for label, number in EVERY]
    write(root / "images.txt", *(f"{i} {path}" for i, path in enumerate(paths, 1)))
    write(root / "image_class_labels.txt", *(f"{i} {label + 1}" for i, (label, _) in enumerate(EVERY, 1)))
    write(root / "classes.txt", *(f"{i + 1} {i + 1:03d}.Bird_{i}" for i in range(CLASSES + TEST_CLASSES)))
    save(root / "images", paths)
    return ALL


def make_cars(root):
    root.mkdir(parents=True)
    paths = [f"car_ims/{i:06d}.jpg" for i in range(1, len(EVERY) + 1)]
    rows = [(path, 1, 2, 10, 7, label + 1, 0) for path, (label, _) in zip(paths, EVERY, strict=True)]
    models = [f"Make Model{label} Sedan 2012" for label in range(CLASSES + TEST_CLASSES)]
    savemat(root / "cars_annos.mat", {"annotations": records(FIELDS, rows), "class_names": cell(models)})
    save(root, paths)
    return ALL


def make_sop(root):
    paths = [f"chair_final/{label}_{number}.JPG" for label, number in EVERY]
    lines = [f"{i} {EVERY[i - 1][0] + 1} {EVERY[i - 1][0] % 3 + 1} {path}" for i, path in enumerate(paths, 1)]
    heading, end = "image_id class_id super_class_id path", CLASSES * IMAGES
    write(root / "Ebay_train.txt", heading, *lines[:end])
    write(root / "Ebay_test.txt", heading, *lines[end:])
    save(root, paths)
    return ALL


def make_inshop(root):
    paths = [f"img/WOMEN/Dresses/id_{label:08d}/0{number}_1_front.jpg" for label, number in EVERY]
    split = ["train" if label < CLASSES else ("query", "gallery")[number % 2] for label, number in EVERY]
    lines = [
        f"{path} id_{label:08d} {part}" for path, (label, _), part in zip(paths, EVERY, split, strict=True)
    ]
    heading = "image_name item_id evaluation_status"
    write(root / "Eval/list_eval_partition.txt", str(len(lines)), heading, *lines)
    save(root, paths)
    half = Count(TEST_CLASSES, TEST_CLASSES * IMAGES // 2)
    return {"train": ALL["train"], "query": half, "gallery": half}


def make_vehicleid(root):
    lines = [f"{i:07d} {label + 100}" for i, (label, _) in enumerate(EVERY, 1)]
    end = CLASSES * IMAGES
    write(root / "train_test_split/train_list.txt", *lines[:end])
    for size in ("800", "1600", "2400"):
        write(root / f"train_test_split/test_list_{size}.txt", *lines[end:])
    save(root / "image", [f"{i:07d}.jpg" for i in range(1, len(EVERY) + 1)])
    return {"train": Count(CLASSES), **dict.fromkeys(("800", "1600", "2400"), Count(TEST_CLASSES))}


MAKERS = {
    "cub": make_cub,
    "cars": make_cars,
    "inshop": make_inshop,
    "sop": make_sop,
    "vehicleid": make_vehicleid,
}
PAPER = {name: "cub-paper" if name == "cub" else name for name in MAKERS}

# What the authors do on every dataset, where their program and the paper's text differ.
COMMON = {
    "crop": "random_resized",
    "crop_scale": (0.08, 1.0),
    "decode_size": 320,
    "cluster_on": "features",
    "cluster_order": "round_robin",
    "cluster_steps": "equal",
    "epoch_length": "largest",
    "loss_args": {"without_replacement": True, "equal_pairs": True},
    "conquer": "plain",
    "nmi_runs": 10,
}
LARGE = {"class_sampling": "classes"}
SOP = {**LARGE, "mask_weight_decay": 1e-4, "freeze_backbone_epochs": 1, "epochs": 180}
OWN = {
    "cub": {"augmentation": "geom+color-authors"},
    "cars": {},
    "inshop": {"augmentation": "geom-authors", **LARGE},
    "sop": SOP,
    "vehicleid": SOP,
}
SMALL = {
    "backbone": "small",
    "pretrained": False,
    "image_size": 16,
    "resize": 20,
    "decode_size": 24,
    "dim": 16,
    "batch": 8,
    "k_max": 2,
    "divide_every": 1,
    "epochs": 2,
    "ks": (1, 2),
    "device": "cpu",
    "workers": 2,
}


@pytest.mark.parametrize("name", MAKERS)
def test_the_authors_preset_is_the_papers_with_their_regime(name):
    config = preset(f"{name}-authors")
    assert config == preset(PAPER[name]).replace(**COMMON, **OWN[name])
    settings = config.settings()
    assert {setting: settings[setting] for setting in COMMON | OWN[name]} == COMMON | OWN[name]
    assert (config.loss.name, config.masks.kind, config.division.strategy) == (
        "margin",
        "learned",
        "progressive",
    )
    assert (config.evaluation.every, config.data.val_classes, config.best_by) == (1, 0, "recall@1")
    assert (config.optimisation.class_sampling == "classes") == (config.optimisation.per_class is not None)
    if config.masks.weight_decay:
        assert config.masks.weight_decay == config.optimisation.weight_decay


def test_every_authors_preset_is_tested():
    assert {name for name in PRESETS if name.endswith("-authors")} == {f"{name}-authors" for name in MAKERS}


def test_the_backbone_is_frozen_every_second_epoch_on_sop():
    division = preset("sop-authors").division
    assert division.freeze_backbone_epochs == 1
    frozen = [epoch for epoch in range(180) if divides(epoch, "progressive", 32, division.divide_every)]
    assert frozen == list(range(2, 180, 2))


@pytest.mark.parametrize("name", MAKERS)
def test_the_authors_preset_trains_a_miniature(name, tmp_path, monkeypatch):
    counts = MAKERS[name](tmp_path / "data")
    monkeypatch.setitem(READERS, name, partial(READERS[name], counts=counts))
    plans, begin = [], Recorder.begin_steps
    monkeypatch.setattr(
        Recorder, "begin_steps", lambda recorder, plan: plans.append(plan) or begin(recorder, plan)
    )
    config = preset(f"{name}-authors").replace(root=tmp_path / "data", **SMALL)
    if config.data.augmentation not in AUGMENTATIONS:
        config = config.replace(augmentation=config.data.augmentation.removesuffix("-authors"))
    log = train(config, tmp_path / "run")

    assert [record["k"] for record in log] == [1, 2]
    assert all(np.isfinite(record[score]) for record in log for score in ("loss", "recall@1", "nmi"))
    run = Run.open(tmp_path / "run")
    assert run.config == config
    named = (COMMON | OWN[name]).keys() - {"decode_size", "epochs", "augmentation"}
    assert {setting: run.config.settings()[setting] for setting in named} == {
        setting: preset(f"{name}-authors").settings()[setting] for setting in named
    }
    first, second = plans
    assert first.clusters.tolist() == [0] * 4
    assert second.clusters.tolist() == [0, 1] * (len(second) // 2), "round robin, as many steps for both"
    clusters = load_file(run.folder / "divisions" / "epoch_0001.safetensors")["clusters"].tolist()
    placed = list(
        zip(clusters, [label for label, _ in EVERY], strict=False)
    )  # the classes of training come first
    alone = 1 if config.optimisation.per_class else 0  # images without a positive are not drawn
    drawn = [cluster for cluster, label in placed if placed.count((cluster, label)) > alone]
    assert len(second) == 2 * math.ceil(max(drawn.count(0), drawn.count(1)) / 8)
