import csv
import json
from functools import partial

import pytest

from divconq.cli import main
from divconq.data.sources.official_layout import Count
from divconq.data.sources.registry import READERS
from divconq.data.sources.vehicleid import read_vehicleid
from divconq.evaluation import one_gallery_image
from divconq.train import train
from divconq.trained_run import TrainedRun
from divconq.training.datasets import open_data
from divconq.training.setup import prepare
from evaluation.slow_scores import scores_by_hand

# Cameras


def write_table(folder, photos, camera, split):
    """Write a table of the photos. ``camera`` and ``split`` map a class and an image number to a value."""
    rows = [
        (photos / f"class{label:02d}" / f"{number}.png", label, camera(label, number), split(label, number))
        for label in range(16)
        for number in range(6)
    ]
    with (folder / "photos.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "camera", "split"), *rows])
    return str(folder / "photos.csv")


def train_or_test(label, number):
    return "train" if label < 8 else "test"


def query_or_gallery(label, number):
    return "train" if label < 8 else "query" if number < 2 else "gallery"


def a_few_cameras(label, number):
    """Return the camera of an image. All images of class 9 have the same camera."""
    return "left" if label == 9 else ("left", "right", "top")[number * label % 3 if number else 0]


@pytest.mark.parametrize("split", [train_or_test, query_or_gallery])
def test_same_camera_matches_are_dropped_or_kept(split, tiny, photos, tmp_path, capsys):
    table = write_table(tmp_path, photos, a_few_cameras, split)
    config = tiny.replace(data=table, epochs=1)
    scores = {}
    for same_camera in ("drop", "keep"):
        out = tmp_path / same_camera
        (record,) = train(config.replace(same_camera=same_camera), out)
        run = TrainedRun(out, device="cpu")
        x, test = run.embed(table)
        arguments, cameras = (x, test.labels), {"query_cameras": test.factors["camera"]}
        if split is query_or_gallery:
            y, gallery = run.embed(table, "gallery")
            arguments += (y, gallery.labels)
            cameras["gallery_cameras"] = gallery.factors["camera"]
        twin = scores_by_hand(
            *arguments, ks=config.evaluation.ks, **(cameras if same_camera == "drop" else {})
        )
        scores[same_camera] = {name: record[name] for name in twin}
        assert scores[same_camera] == pytest.approx(twin, abs=1e-9)
    assert scores["drop"]["queries_without_positive"] >= 2, "those of class 9"
    assert scores["keep"]["queries_without_positive"] == 0
    assert scores["drop"]["map@r"] != scores["keep"]["map@r"]
    main(["eval", str(tmp_path / "keep"), "--same-camera", "drop", "--device", "cpu", "--json"])
    again = json.loads(capsys.readouterr().out)
    assert {name: again[name] for name in scores["drop"]} == pytest.approx(scores["drop"], abs=1e-9)


@pytest.mark.parametrize("split", [train_or_test, query_or_gallery])
def test_no_positive_from_another_camera_is_an_error_before_training(split, tiny, photos, tmp_path):
    table = write_table(tmp_path, photos, lambda label, number: label, split)
    config = tiny.replace(data=table, epochs=1)
    with pytest.raises(
        ValueError, match=r"no test image has a positive from another camera.* --same-camera keep"
    ):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    train(config.replace(same_camera="keep"), tmp_path / "run")
    run = TrainedRun(tmp_path / "run", device="cpu")
    run.config = config
    assert len(run.embed(table)[0]) == (48 if split is train_or_test else 16), "nothing is searched"
    with pytest.raises(ValueError, match="--same-camera keep"):
        run.scores()


def test_held_out_classes_must_have_positives(tiny, photos, tmp_path):
    def camera(label, number):
        return label if label < 8 else number

    table = write_table(tmp_path, photos, camera, train_or_test)
    config = tiny.replace(data=table, val_classes=2)
    with pytest.raises(
        ValueError, match=r"no held-out image has a positive from another camera.* --same-camera keep"
    ):
        prepare(config)
    assert prepare(config.replace(same_camera="keep")).validation is not None
    assert open_data(config)[1] is not None, "to score a run, they do not matter"
    with pytest.raises(ValueError, match="and a held-out query has 11; add held-out images"):
        prepare(config.replace(same_camera="keep", ks=(1, 12)))


# One gallery image per vehicle


@pytest.fixture
def vehicles(photos, tmp_path, monkeypatch):
    """Write a small VehicleID: 8 training vehicles and 3 test vehicles, with 6 images each."""
    root = tmp_path / "VehicleID_V1.0"
    for part in ("image", "train_test_split"):
        (root / part).mkdir(parents=True)
    lines = []
    for label in range(11):
        for number in range(6):
            name = f"{len(lines) + 1:07d}"
            (root / "image" / f"{name}.jpg").write_bytes(
                (photos / f"class{label:02d}" / f"{number}.png").read_bytes()
            )
            lines.append(f"{name} {label}\n")
    for name, part in (("train_list", lines[:48]), ("test_list_800", lines[48:])):
        (root / "train_test_split" / f"{name}.txt").write_text("".join(part))
    for name in ("test_list_1600", "test_list_2400"):
        (root / "train_test_split" / f"{name}.txt").write_text("")
    small = partial(read_vehicleid, test="800", counts={"train": Count(8), "800": Count(3)})
    monkeypatch.setitem(READERS, "vehicleid:800", small)
    return root


@pytest.mark.parametrize("cache", [True, False])
def test_vehicleid_reports_reid_recall(cache, vehicles, tiny, tmp_path, capsys):
    out = tmp_path / "run"
    config = tiny.replace(
        data="vehicleid:800", root=vehicles, ks=(1, 2, 5), epochs=1, seed=3, cache=cache, val_classes=2
    )
    (record,) = train(config, out)
    x, test = TrainedRun(out, device="cpu").embed("vehicleid:800")
    expected = one_gallery_image(
        x, test.labels, draws=10, seed=3, ks=(1, 2)
    )  # among three, the fifth is none
    drawn = {name: value for name, value in record.items() if "reid" in name}
    assert drawn == pytest.approx({f"reid_{name}": value for name, value in expected.items()}, abs=1e-9)
    assert 0 < drawn["reid_recall@1"] < drawn["reid_recall@2"] <= 1
    alone = scores_by_hand(x, test.labels, ks=config.evaluation.ks)
    assert {name: record[name] for name in alone} == pytest.approx(alone, abs=1e-9)

    main(["eval", str(out), "--device", "cpu", "--json"])
    assert json.loads(capsys.readouterr().out) == pytest.approx(
        {name: record[name] for name in (*alone, "nmi", "spread", *drawn)}, abs=1e-6
    )
    main(["eval", str(out), "--device", "cpu"])
    shown = capsys.readouterr().out
    assert ["reid", "R@1", f"{100 * drawn['reid_recall@1']:.2f}"] in [
        line.split() for line in shown.splitlines()
    ]
    assert "the gallery is one random image of each class" in shown


def test_no_gallery_is_drawn_if_all_ks_are_too_large(vehicles, tiny, tmp_path):
    config = tiny.replace(data="vehicleid:800", root=vehicles, ks=(4,), epochs=1)
    scores = prepare(config).scores()
    assert "recall@4" in scores
    assert not any("reid" in name for name in scores)


def test_other_data_has_no_reid_recall(tiny):
    assert prepare(tiny).gallery_draws == 0
