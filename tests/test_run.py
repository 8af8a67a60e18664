import dataclasses
import json
import os
import pickle

import pytest
import torch

from divconq.config import Config
from divconq.run import Checkpoints, Run, write_atomically


@pytest.fixture
def run(tmp_path):
    return Run.create(tmp_path / "run", Config(backbone="small", pretrained=False, dim=8))


def test_a_folder_that_exists_is_refused_and_left_alone(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("keep")
    with pytest.raises(
        ValueError, match="exists already; choose another --out, or continue it with --resume"
    ):
        Run.create(tmp_path / "run", Config())
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.txt"]


def test_open_gives_the_config_back(run):
    assert Run.open(run.folder).config == run.config


def test_a_folder_without_config_is_not_a_run(tmp_path):
    with pytest.raises(ValueError, match=r"is not a run folder: it has no config.yaml"):
        Run.open(tmp_path)


def test_the_log_is_one_object_an_epoch_and_can_be_rewound(run):
    for epoch in (1, 2, 3):
        run.log({"epoch": epoch, "loss": 1 / epoch})
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 4, "lo')  # the power failed here
    assert [record["epoch"] for record in run.metrics()] == [1, 2, 3]
    run.rewind(2, dataclasses.replace(run.config, epochs=9))
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2]
    assert Run.open(run.folder).config.epochs == 9


def test_checkpoints_come_back(run):
    run.save("best", {"epoch": 3, "model": {"w": torch.arange(3)}})
    run.save("last", {"epoch": 4, "model": {"w": torch.arange(4)}})
    assert run.load("last")["epoch"] == 4
    assert torch.equal(run.load("best")["model"]["w"], torch.arange(3))


def test_a_truncated_checkpoint_is_a_clear_error(run):
    run.save("last", {"epoch": 1, "w": torch.zeros(1000)})
    whole = (run.folder / "last.pt").read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        (run.folder / "last.pt").write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"last.pt is damaged or not a checkpoint.*use best.pt"):
            run.load()


class Hostile:
    def __reduce__(self):
        return (os.mkdir, ("hostile-was-here",))


def test_a_hostile_checkpoint_is_not_executed(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for write in (torch.save, lambda thing, path: path.write_bytes(pickle.dumps(thing))):
        write({"format": "divconq checkpoint 1", "model": Hostile()}, run.folder / "last.pt")
        with pytest.raises(ValueError, match="damaged or not a checkpoint"):
            run.load()
    assert not (tmp_path / "hostile-was-here").exists()


def test_a_foreign_checkpoint_is_refused(run):
    torch.save({"state_dict": {}}, run.folder / "last.pt")
    with pytest.raises(ValueError, match="is not a checkpoint of this version"):
        run.load()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(target):
        target.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_checkpoints_are_minutes_apart_and_belong_together(run):
    checkpoints = Checkpoints(run, minutes=10)
    state = {"epoch": 1, "model": {"w": torch.zeros(1)}, "optimizer": {}}
    checkpoints.offer(state, best=True, now=False)
    assert run.load("last")["epoch"] == run.load("best")["epoch"] == 1
    assert "optimizer" not in run.load("best")

    checkpoints.offer({**state, "epoch": 2}, best=True, now=False)
    state["model"]["w"] += 1  # training goes on
    checkpoints.offer({**state, "epoch": 3}, best=False, now=False)
    assert run.load("last")["epoch"] == run.load("best")["epoch"] == 1

    checkpoints.offer({**state, "epoch": 4}, best=False, now=True)
    assert (run.load("last")["epoch"], run.load("best")["epoch"]) == (4, 2)
    assert (run.load("last")["model"]["w"], run.load("best")["model"]["w"]) == (1, 0)


def test_checkpoints_without_a_pause_are_all_written(run):
    checkpoints = Checkpoints(run, minutes=0)
    for epoch in (1, 2):
        checkpoints.offer({"epoch": epoch}, best=False, now=False)
        assert run.load("last")["epoch"] == epoch
