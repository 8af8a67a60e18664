"""The study of whole runs: findings, comparison with other runs, and what is missing."""

import csv
import dataclasses
import json
import math
import shutil
import sys

import pytest
import torch

from analysis.made_runs import PLAIN_UMAP, SETTINGS
from divconq.analysis import analyse, read_run
from divconq.analysis.report.findings import collect_findings, to_json
from divconq.analysis.report.thumbnails import image_refs
from divconq.analysis.study import Study, short_names
from divconq.runs import checkpoints
from divconq.runs.folder import Run
from divconq.train import train


@pytest.fixture(autouse=True)
def umap(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", PLAIN_UMAP)


@pytest.fixture(scope="module")
def runs(photos, tmp_path_factory):
    """A run with two subspaces, one without masks, one that never divides, and one with a gallery and cameras."""
    folder = tmp_path_factory.mktemp("runs")
    rows = [
        (file, file.parent.name, i % 2, "train" if number < 8 else ("gallery", "query")[i % 2])
        for number, kind in enumerate(sorted(photos.iterdir()))
        for i, file in enumerate(sorted(kind.iterdir()))
    ]
    with (folder / "shop.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "camera", "split"), *rows])
    config = SETTINGS.replace(data=str(photos))
    train(config, folder / "divided")
    train(config.replace(masks="none", epochs=2), folder / "unmasked")
    train(config.replace(k_max=1, epochs=1), folder / "whole")
    train(config.replace(data=str(folder / "shop.csv")), folder / "shop")
    return folder


def study(records, **options):
    """The findings of runs, and the images of the first."""
    opened = Study(records, **options)
    return collect_findings(opened), opened.images


@pytest.fixture
def copy(runs, tmp_path):
    def copied(name):
        shutil.copytree(runs / name, tmp_path / name)
        return tmp_path / name

    return copied


# Whole runs


def test_a_whole_run(runs, photos):
    record = read_run(runs / "divided")
    findings, images = study([record])
    assert (findings.dataset, findings.epoch, findings.missing) == ("photos", 3, ())
    assert (findings.train_images, findings.train_classes) == (48, 8)
    assert (findings.test_images, findings.test_classes) == (48, 8)
    assert list(images) == ["train", "test"]
    logged = record.metrics[-1]["recall@1"]
    assert findings.chapters["subspaces"].final_recall == pytest.approx(logged)
    assert findings.chapters["subspaces"].queries == 48
    assert len(findings.chapters["subspaces"].masks) == len(findings.chapters["subspaces"].recalls) == 2
    assert [step.k for step in findings.chapters["clusters"].divisions] == [2, 2]
    assert len(findings.chapters["clusters"].galleries) == 2
    assert findings.chapters["clusters"].factors is findings.chapters["subspaces"].factors is None
    (space,) = findings.chapters["spaces"]
    assert (space.name, space.train.images, space.test.images, space.test.dim) == ("divided", 48, 48, 16)
    assert len(space.cluster_dimensions) == 2
    assert (len(findings.chapters["map"].points), findings.chapters["map"].of) == (96, 96)
    assert findings.chapters["map"].splits == ("train",) * 48 + ("test",) * 48
    assert findings.chapters["map"].labels == tuple(
        torch.cat([images["train"].labels, images["test"].labels]).tolist()
    )
    assert findings.chapters["errors"].duplicates
    assert json.loads(to_json(findings))["spaces"][0]["name"] == "divided"
    for shown in image_refs(findings):
        some = images[shown.split]
        assert shown.path == some.paths[shown.index]
        assert shown.label == some.names[some.labels[shown.index]]


def test_the_training_chapter_matches_the_log(runs):
    record = read_run(runs / "divided")
    (training,) = study([record])[0].chapters["training"]
    assert training.curves["loss"] == ((1, 2, 3), tuple(row["loss"] for row in record.metrics))
    assert {"epoch", "seconds"}.isdisjoint(training.curves)
    assert set(training.curves) | {"epoch", "seconds"} == set(record.metrics[-1])
    assert training.seconds["train"] == pytest.approx(sum(row["seconds"]["train"] for row in record.metrics))
    assert training.config["k_max"] == 2
    assert training.missing == record.missing


def test_every_image_has_a_thumbnail(runs):
    said = []
    findings, pictures = analyse(
        [runs / "divided", runs / "divided" / ".." / "divided"], device="cpu", say=said.append
    )
    assert set(pictures) == {(shown.split, shown.index) for shown in image_refs(findings)}
    assert len(findings.chapters["training"]) == 1, "a folder counts once"
    assert said[0] == "embeddings of divided"
    assert said[-1] == "thumbnails"


def test_the_best_epoch(runs, copy):
    folder = copy("divided")
    state = checkpoints.load(folder)
    checkpoints.save(folder, "best", {**state, "epoch": 2})
    assert study([read_run(folder)], which="best")[0].epoch == 2


def test_a_gallery_and_cameras(runs):
    record = read_run(runs / "shop")
    findings, _ = study([record])
    assert findings.missing == (
        "Searches in this report include images of the same camera; the scores leave them out.",
    )
    assert (findings.test_images, findings.test_classes) == (48, 8)
    assert (
        findings.chapters["clusters"].factors.names
        == findings.chapters["subspaces"].factors.names
        == ("camera",)
    )
    assert len(findings.chapters["clusters"].factors.values) == 2
    found = [one.image for worst in findings.chapters["errors"].worst for one in worst.found]
    assert {image.split for image in found} == {"gallery"}
    assert findings.chapters["spaces"][0].test.images == 48
    assert findings.chapters["subspaces"].queries == 24
    assert set(findings.chapters["map"].splits) == {"train", "test", "gallery"}


# Runs that are compared


def test_other_runs_are_compared(runs):
    names = ["divided", "whole", "unmasked", "shop"]
    findings, _ = study([read_run(runs / name) for name in names])
    assert [space.name for space in findings.chapters["spaces"]] == ["divided", "whole", "unmasked"]
    assert [training.name for training in findings.chapters["training"]] == names
    assert findings.missing == ("Only the training of shop is compared: it has other test images.",)
    alone = study([read_run(runs / "whole")])[0].chapters["spaces"][0]
    assert dataclasses.replace(findings.chapters["spaces"][1], train=alone.train) == alone
    assert findings.chapters["spaces"][1].train == alone.train


def test_the_baseline_is_the_first_run_without_division(runs):
    for others, expected in (
        (["shop", "whole", "unmasked"], "whole"),
        (["unmasked", "whole"], "unmasked"),
        (["shop"], None),
    ):
        opened = Study([read_run(runs / name) for name in ("divided", *others)])
        assert getattr(opened.baseline, "name", None) == expected


# What is missing


def test_a_run_that_never_divides(runs):
    findings, _ = study([read_run(runs / "whole")])
    assert findings.chapters["clusters"] is None
    assert findings.chapters["subspaces"] is None
    assert findings.missing == ("There are no subspaces to compare: K is 1.",)
    assert len(findings.chapters["spaces"][0].cluster_dimensions) == 1
    assert findings.chapters["errors"] is not None


def test_a_run_without_masks(runs):
    findings, _ = study([read_run(runs / "unmasked")])
    assert len(findings.chapters["clusters"].galleries) == 2
    assert findings.chapters["subspaces"] is None
    assert (
        "There are no subspaces: the run was trained with masks none."
        in findings.chapters["training"][0].missing
    )


def test_a_run_without_checkpoint_has_curves_and_divisions(copy):
    folder = copy("divided")
    for name in ("last.pt", "previous.pt"):
        (folder / name).unlink(missing_ok=True)
    findings, _ = study([read_run(folder)])
    assert findings.epoch is None
    assert findings.chapters["subspaces"] is findings.chapters["map"] is findings.chapters["errors"] is None
    assert findings.chapters["spaces"] == ()
    assert findings.chapters["clusters"].galleries == findings.chapters["clusters"].split_classes == ()
    assert not math.isnan(findings.chapters["clusters"].divisions[0].nmi_classes)
    assert "loss" in findings.chapters["training"][0].curves
    (sentence,) = findings.missing
    assert sentence.startswith("The network of divided cannot be analysed: ")
    assert "holds no last.pt" in sentence


def test_a_run_that_stopped_at_once(tmp_path, photos):
    run = Run.create(tmp_path / "run", SETTINGS.replace(data=str(photos)))
    findings, pictures = analyse([run.folder], device="cpu")
    assert findings.chapters["training"][0].curves == {}
    assert findings.chapters["clusters"] is None
    assert pictures == {}
    assert json.loads(to_json(findings))["epoch"] is None


def test_a_missing_dataset(copy):
    folder = copy("divided")
    config = (folder / "config.yaml").read_text()
    record = read_run(folder)
    (folder / "config.yaml").write_text(config.replace(record.config.data.name, "/nowhere/photos"))
    findings, pictures = analyse([folder], device="cpu")
    (sentence,) = findings.missing
    assert sentence.startswith("The images cannot be opened: no dataset is called '/nowhere/photos'")
    assert (findings.train_images, findings.test_classes, findings.dataset) == (0, 0, "photos")
    assert math.isnan(findings.chapters["clusters"].divisions[0].nmi_classes)
    assert not math.isnan(findings.chapters["clusters"].divisions[1].kept)
    assert findings.chapters["clusters"].galleries == ()
    assert pictures == {}
    again, _ = study([read_run(copy("whole")), read_run(folder)])
    assert any(line.startswith("Only the training of divided is compared: ") for line in again.missing)


def test_clusters_of_other_images(copy):
    folder = copy("divided")
    state = checkpoints.load(folder)
    division = state["divide_and_conquer"]["_extra_state"]
    division["clusters"] = division["clusters"][:-1]
    checkpoints.save(folder, "last", state)
    findings, _ = study([read_run(folder)])
    assert findings.missing == (
        "The clusters of divided cannot be shown: the run divided 47 images, and the dataset now has 48.",
    )
    assert findings.chapters["clusters"].galleries == ()
    assert findings.chapters["spaces"][0].cluster_dimensions == ()
    assert findings.chapters["subspaces"] is not None


def test_a_backbone_from_a_missing_import(copy):
    folder = copy("divided")
    text = (folder / "config.yaml").read_text()
    text = text.replace("backbone: small", "backbone: mine").replace(
        "import_file: null", "import_file: /x/mine.py"
    )
    (folder / "config.yaml").write_text(text)
    (sentence,) = study([read_run(folder)])[0].missing
    assert "unknown backbone" in sentence
    assert sentence.endswith(" Its training used --import mine.py; pass it again.")


# Names


def test_short_names_are_unique(tmp_path):
    paths = [tmp_path / part for part in ("a/run", "b/run", "c", "a/x/run")]
    assert short_names(paths) == ["a/run", "b/run", "c", "x/run"]
    assert short_names(paths[:1]) == ["run"]
