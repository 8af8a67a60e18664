"""best.pt is an epoch with the most clusters, also after a resume, and from a checkpoint of an older version."""

import pytest

from divconq.experiments.comparison import compare
from divconq.runs import checkpoints
from divconq.runs.folder import Run
from divconq.train import train

SCORES = [0.8, 0.7, 0.5, 0.6, 0.55]  # K is 1, 1, 2, 2, 4 if the run divides every second epoch


@pytest.fixture
def scored(tiny, monkeypatch):
    """The config of a run whose scores are ``SCORES``."""
    monkeypatch.setattr(
        "divconq.training.setup.Job.scores",
        lambda job, train: {"recall@1": SCORES[job.dc.epoch], "spread": 1.0},
    )
    return tiny.replace(epochs=5, divide_every=2, k_max=4)


def kept(run):
    """The epoch of best.pt, and what last.pt says about it."""
    last = run.load("last")
    assert run.load("best")["best"] == last["best"]
    return run.load("best")["epoch"], last["best"], last["best_k"]


@pytest.mark.parametrize(
    ("changes", "best"),
    [
        ({}, (5, 0.55, 4)),
        ({"epochs": 4}, (4, 0.6, 2)),
        ({"epochs": 2}, (1, 0.8, 1)),
        ({"k_max": 2}, (4, 0.6, 2)),
        ({"k_max": 1}, (1, 0.8, 1)),
        ({"division": "flat"}, (1, 0.8, 4)),
        ({"division": "random", "masks": "none"}, (5, 0.55, 4)),
        ({"eval_every": 3}, (5, 0.55, 4)),
    ],
    ids=str,
)
def test_the_best_epoch_of_a_run(scored, tmp_path, changes, best):
    train(scored.replace(**changes), tmp_path / "run")
    assert kept(Run.open(tmp_path / "run")) == best
    (row,) = compare([tmp_path / "run"])["rows"]
    assert row["epochs"]["test"] == {0: best[0]}, "the same epoch as divconq compare"


@pytest.mark.parametrize("stop", [1, 2, 3, 4])
def test_a_resumed_run_knows_the_clusters_of_its_best_epoch(scored, tmp_path, stop):
    train(scored.replace(epochs=stop), tmp_path / "run")
    train(scored, tmp_path / "run", resume=True)
    assert kept(Run.open(tmp_path / "run")) == (5, 0.55, 4)


def as_an_old_version_wrote_it(run, score):
    """Replace last.pt by one without the K of the best epoch, whose score is ``score``."""
    state = checkpoints.load(run.folder)
    del state["best_k"]
    checkpoints.save(run.folder, "last", {**state, "best": score})


def test_an_old_checkpoint_whose_best_epoch_came_before_a_division(scored, tmp_path):
    train(scored.replace(epochs=3), tmp_path / "run")
    run = Run.open(tmp_path / "run")
    as_an_old_version_wrote_it(run, 0.8)  # of the first epoch
    train(scored.replace(epochs=4), tmp_path / "run", resume=True)
    assert kept(run) == (4, 0.6, 2)


def test_an_old_checkpoint_whose_best_epoch_stays_the_best(scored, tmp_path, monkeypatch):
    train(scored.replace(epochs=3, k_max=2), tmp_path / "run")
    run = Run.open(tmp_path / "run")
    as_an_old_version_wrote_it(run, 0.5)
    monkeypatch.setitem(globals(), "SCORES", [0.8, 0.7, 0.5, 0.45])
    train(scored.replace(epochs=4, k_max=2), tmp_path / "run", resume=True)
    assert kept(run) == (3, 0.5, 2)
