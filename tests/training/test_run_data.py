"""The split is part of the run: eval, embed, analyze and resume see the images that the run has seen."""

import json
import shutil
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import write_photos
from divconq.cli import main
from divconq.data import open_dataset
from divconq.data.images import decoding
from divconq.data.images.cache import Cached, PartlyCached
from divconq.data.split_record import SplitRecord
from divconq.runs.folder import Run
from divconq.train import train
from divconq.trained_run import TrainedRun
from divconq.training.recorded_split import ChangedDataError
from divconq.training.run_data import open_own_data, open_split, open_test
from tiny_settings import TINY


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with held-out classes, and the folder that it was trained on."""
    folder = tmp_path_factory.mktemp("run data")
    write_photos(folder / "photos", classes=12, images=4)
    train(
        TINY.replace(data=str(folder / "photos"), epochs=2, k_max=1, batch=4, val_classes=2), folder / "run"
    )
    return folder


@pytest.fixture
def place(trained, tmp_path):
    """A copy of both that a test may change."""
    shutil.copytree(trained, tmp_path / "all")
    run = tmp_path / "all" / "run"
    config = run / "config.yaml"
    config.write_text(config.read_text().replace(str(trained), str(tmp_path / "all")))
    return tmp_path / "all"


def add_classes(folder, count=4):
    """Classes that sort before all others, so that a split drawn anew is another one."""
    for number in range(count):
        write_photos(folder / "more", classes=1, images=4)
        shutil.move(folder / "more" / "class00", folder / "photos" / f"added{number}")
    shutil.rmtree(folder / "more")


def repaint(path):
    with Image.open(path) as image:
        Image.fromarray(255 - np.asarray(image)).save(path)


def test_the_record_holds_every_image_with_its_class_and_content(place):
    record, data = Run.open(place / "run").split(), open_dataset(str(place / "photos"), size=25)
    assert {split: len(images.paths) for split, images in record.splits.items()} == {
        "train": 16, "val": 8, "test": 24,
    }  # fmt: skip
    assert record.splits["test"].paths == data.test.paths
    assert not set(record.splits["train"].names) & set(record.splits["val"].names)
    everything = [mark for images in record.splits.values() for mark in images.fingerprints]
    assert len(set(everything)) == 48, "the content of every image differs"


def test_an_added_class_does_not_change_the_test(place):
    before = TrainedRun(place / "run", device="cpu").scores()
    names = set(Run.open(place / "run").split().splits["test"].names)
    add_classes(place)
    drawn = set(open_dataset(str(place / "photos"), size=25).test.names)
    assert drawn - names - {f"added{n}" for n in range(4)}, "a split drawn anew tests classes trained on"
    with pytest.warns(UserWarning, match="photos has 16 images that the run does not know.*: added0/0.png"):
        assert TrainedRun(place / "run", device="cpu").scores() == before
    with pytest.warns(UserWarning, match="does not know"):
        found = open_own_data(Run.open(place / "run"))[1]
    assert {split: images.names for split, images in found.items()} == {
        split: images.names for split, images in Run.open(place / "run").split().splits.items()
    }


def test_a_moved_copy_of_the_data_is_recognised(place):
    before = TrainedRun(place / "run", device="cpu").scores()
    add_classes(place)
    shutil.copytree(place / "photos", place / "elsewhere")
    with pytest.warns(UserWarning, match="elsewhere has 16 images that the run does not know"):
        assert TrainedRun(place / "run", device="cpu").scores(str(place / "elsewhere")) == before


def test_test_images_that_were_trained_on_are_refused(place):
    train_class = Run.open(place / "run").split().splits["train"].names[0]
    write_photos(place / "others", classes=4, images=4, size=30)
    for name in ("x", "y", "z"):
        shutil.copytree(place / "photos" / train_class, place / "others" / name)
    with pytest.raises(ChangedDataError, match="test images of others are training images of the run"):
        open_test(Run.open(place / "run"), str(place / "others"))
    open_test(Run.open(place / "run"), str(place / "others"), accept_changes=True)


@pytest.mark.parametrize("change", ["missing", "changed"])
def test_another_test_is_refused(place, change):
    run = Run.open(place / "run")
    path = run.split().splits["test"].paths[5]
    file = place / "photos" / path
    file.unlink() if change == "missing" else repaint(file)
    word = "is missing" if change == "missing" else "has changed"
    with pytest.raises(ChangedDataError, match=rf"not be the same test: 1 test image {word} \({path}\); "):
        open_test(run)
    with pytest.warns(UserWarning, match=f"1 test image {word}"):
        data = open_test(run, accept_changes=True)
    assert len(data.test) == (23 if change == "missing" else 24)


def test_the_class_of_the_run_counts_if_a_table_changes_it(place):
    rows = [
        f"photos/{path.parent.name}/{path.name},{path.parent.name}"
        for path in sorted((place / "photos").rglob("*.png"))
    ]
    table = place / "photos.csv"
    table.write_text("\n".join(["path,label", *rows]))
    config = TINY.replace(data=str(table), epochs=1, k_max=1, batch=4)
    train(config, place / "table run")
    run = Run.open(place / "table run")
    path, other = run.split().splits["test"].paths[0], run.split().splits["train"].names[0]
    table.write_text(table.read_text().replace(f"{path},{path.split('/')[1]}", f"{path},{other}"))
    with pytest.raises(ChangedDataError, match=f"1 test image has another class .{path}"):
        open_test(run)
    with pytest.warns(UserWarning, match="has another class"):
        test = open_test(run, accept_changes=True).test
    assert test.names[int(test.labels[0])] == path.split("/")[1]


def test_changed_training_images_do_not_stop_an_evaluation_but_a_resume(place):
    run = Run.open(place / "run")
    repaint(place / "photos" / run.split().splits["train"].paths[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_test(run)
    with pytest.warns(UserWarning, match="1 training image has changed"):
        open_own_data(run)
    longer = run.config.replace(epochs=3)
    with pytest.raises(ChangedDataError, match="not be the same run: 1 training image has changed"):
        train(longer, place / "run", resume=True)
    with pytest.warns(UserWarning, match="1 training image has changed"):
        assert len(train(longer, place / "run", resume=True, accept_changes=True)) == 3


def test_a_resumed_run_leaves_added_classes_out(place, tmp_path):
    shutil.copytree(place / "run", tmp_path / "as it was")
    longer = Run.open(place / "run").config.replace(epochs=3)
    expected = train(longer, tmp_path / "as it was", resume=True)
    add_classes(place)
    with pytest.warns(UserWarning, match="does not know"):
        records = train(longer, place / "run", resume=True)
    for record in (*expected, *records):
        del record["seconds"], record["images_per_s"]
    assert records == expected


@pytest.mark.parametrize("change", [{"val_classes": 1}, {"test_classes": 0.25}, {"singletons": "drop"}])
def test_a_resumed_run_keeps_the_settings_of_its_split(place, change):
    (name,) = change
    config = Run.open(place / "run").config.replace(epochs=3, **change)
    with pytest.raises(ValueError, match=f"the split is part of the run: {name} must stay"):
        train(config, place / "run", resume=True)


def test_a_run_without_a_record_is_checked_by_its_training_classes(place):
    (place / "run" / "split.json").unlink()
    run = Run.open(place / "run")
    before = TrainedRun(place / "run", device="cpu").scores()
    assert 0 <= before["recall@1"] <= 1
    add_classes(place)
    with pytest.raises(ChangedDataError, match="other training classes than the run"):
        open_test(run)
    with pytest.raises(ValueError, match="does not fit the settings and the data"):
        train(run.config.replace(epochs=3), place / "run", resume=True)


def test_a_resumed_run_of_an_older_version_gets_a_record(place):
    expected = (place / "run" / "split.json").read_text()
    (place / "run" / "split.json").unlink()
    train(Run.open(place / "run").config.replace(epochs=3), place / "run", resume=True)
    assert json.loads((place / "run" / "split.json").read_text()) == json.loads(expected)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": "divconq split 1", "splits": {}}'])
def test_a_damaged_record_is_one_sentence(place, text):
    (place / "run" / "split.json").write_text(text)
    with pytest.raises(ValueError, match=r"split.json cannot be read: it is not the record of a split; copy"):
        TrainedRun(place / "run", device="cpu").scores()


def test_the_demo_is_the_same_on_every_machine():
    """Processors round differently, so the pixels of the beetles may differ by one."""
    data = open_dataset("demo")
    record = SplitRecord.of(data)
    pixels = data.test.store.images.clone()
    pixels[0, 0, 0, 0] ^= 1
    elsewhere = replace(data.test, store=replace(data.test.store, images=pixels))
    assert not record.select(replace(data, test=elsewhere))[1].sentences(["train", "test"])
    others = record.select(open_dataset("demo:1"))[1]
    assert len(others.missing["test"]) + len(others.changed.get("test", ())) == 1200


def test_analyze_and_embed_refuse_another_test_on_the_command_line(place, capsys):
    run, photos = str(place / "run"), str(place / "photos")
    (place / "photos" / Run.open(run).split().splits["test"].paths[0]).unlink()
    embed = ["embed", run, "--data", photos, "--split", "test", "--out", str(place / "e.npz")]
    for words in (["eval", run], ["analyze", run], embed):
        with pytest.raises(SystemExit) as stop:
            main([*words, "--device", "cpu"])
        assert stop.value.code == 2, words
        assert "would not be the same test: 1 test image is missing" in capsys.readouterr().err, words
    assert not (place / "e.npz").exists()
    main([*embed, "--device", "cpu", "--accept-changes"])
    assert len(np.load(place / "e.npz")["labels"]) == 23


def test_embed_takes_the_split_of_the_run_and_the_classes_of_the_training(place):
    run = TrainedRun(place / "run", device="cpu")
    record = run.run.split()
    for folder in (place / "photos").iterdir():  # a level below the class does not matter
        if folder.name in record.splits["test"].names:
            (folder / "deep" / "er").mkdir(parents=True)
            shutil.copy(folder / "0.png", folder / "deep" / "er" / "copy.png")
    for split, expected in record.splits.items():
        with pytest.warns(UserWarning, match="does not know"):
            x, images = run.embed(str(place / "photos"), split)
        assert len(x) == len(expected.paths)
        assert (images.paths, images.names) == (expected.paths, expected.names)
    x, images = run.embed(str(place / "photos"))
    assert len(x) == 48 + 6
    assert set(images.names) == {f"class{n:02d}" for n in range(12)}, "not 'er'"


def test_embed_splits_another_folder_as_eval_does(place):
    write_photos(place / "others", classes=6, images=4, size=30)
    run = TrainedRun(place / "run", device="cpu")
    test = open_test(run.run, str(place / "others")).test
    assert run.embed(str(place / "others"), "test")[1].paths == test.paths
    trained = run.embed(str(place / "others"), "train")[1]
    assert not set(trained.names) & set(test.names)
    with pytest.raises(ValueError, match="has no split 'gallery'; use --split train or --split test"):
        run.embed(str(place / "others"), "gallery")


def test_images_below_split_folders_keep_their_class(place):
    for split in ("query", "gallery"):
        (place / "reid" / split).mkdir(parents=True)
        for name in ("class00", "class01"):
            shutil.copytree(place / "photos" / name, place / "reid" / split / name)
    images = open_split(Run.open(place / "run"), str(place / "reid"))
    assert images.names == ("class00", "class01")


def test_the_cache_of_the_training_is_used(place, monkeypatch):
    run = TrainedRun(place / "run", device="cpu")
    train(run.config.replace(epochs=3), place / "run", resume=True)  # decodes the copied photos
    seen = []
    decode = decoding.decode

    def counted(file, *arguments):
        seen.append(file)
        return decode(file, *arguments)

    for module in ("cache", "files"):
        monkeypatch.setattr(f"divconq.data.images.{module}.decode", counted)
    run.scores()
    for split in ("train", "val", "test"):
        run.embed(str(place / "photos"), split)
    main(["analyze", str(place / "run"), "--device", "cpu"])
    assert seen == []
    assert all(isinstance(images.store.source, Cached) for images in open_own_data(run.run)[1].values())
    add_classes(place, 1)
    _, images = run.embed(str(place / "photos"))
    assert isinstance(images.store, PartlyCached)
    assert len(set(seen)) == 4, "only the new images are decoded"
    pixels = images.store.load(torch.arange(len(images)))
    assert torch.equal(pixels, images.store.files.load(torch.arange(len(images))))
