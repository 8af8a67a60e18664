"""Loggers receive all curves of ``metrics.jsonl``, and each point once."""

import contextlib
import json
import signal
import subprocess
import sys
import warnings
from types import ModuleType, SimpleNamespace

import pytest

from divconq.cli import main
from divconq.config import Config
from divconq.runs.folder import Run
from divconq.train import train
from divconq.training.loggers import Loggers, check_loggers, scalars


@pytest.fixture
def run(tmp_path):
    return Run.create(tmp_path / "my run", Config.of(k_max=8))


def record(epoch, loss=None):
    return {
        "epoch": epoch,
        "k": 2,
        "loss": 1 / epoch if loss is None else loss,
        "recall@1": 0.5,
        "seconds": {"train": 1.5},
    }


def points(folder):
    """Return the curves in TensorBoard files as {name: [(epoch, value)]}."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {
        name: [(point.step, pytest.approx(point.value, rel=1e-6)) for point in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def curves(records):
    """Return the same curves from the log."""
    names = dict.fromkeys(name for record in records for name in scalars(record))
    return {name: [(r["epoch"], scalars(r)[name]) for r in records if name in scalars(r)] for name in names}


class StandIn(ModuleType):
    """A fake ``wandb`` module that stores the points of every id, as a server would."""

    def __init__(self, mode="offline"):
        super().__init__("wandb")
        self.points, self.started, self.ended, self.broken = {}, [], [], False
        self.settings = SimpleNamespace(mode=mode)

    def setup(self):
        return SimpleNamespace(settings=self.settings)

    def login(self):
        raise RuntimeError("No API key configured.")

    def init(self, **arguments):
        self.started.append(arguments)
        self.points.setdefault(arguments["id"], [])
        return SimpleNamespace(
            log=lambda figures, step: self.log(arguments["id"], figures, step),
            finish=lambda exit_code: self.ended.append(exit_code),
        )

    def log(self, name, figures, step):
        if self.broken:
            raise RuntimeError("the server is gone")
        self.points[name].append((step, figures))


@pytest.fixture
def wandb(monkeypatch):
    module = StandIn()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_tensorboard_has_all_curves_after_resume(tiny, tmp_path):
    out = tmp_path / "run"
    records = train(tiny.replace(epochs=2), out, loggers=["tensorboard"])
    assert points(out) == curves(records)
    assert {"loss", "k", "recall@1", "train_recall@1", "map@r", "nmi", "overlap", "images_per_s"} < set(
        points(out)
    )
    assert {"seconds/train", "seconds/divide", "seconds/evaluate"} < set(points(out))
    train(tiny.replace(epochs=3), out, resume=True)  # without it
    records = train(tiny.replace(epochs=4), out, resume=True, loggers=["tensorboard"])
    assert points(out) == curves(records), "the epoch that was trained without is there, too"


def test_repeated_epochs_appear_once(run):
    with Loggers(["tensorboard"], run) as loggers:
        for epoch in (1, 2, 3):
            run.log(record(epoch))
            loggers.log(record(epoch))
    run.rewind(1, 1, run.config)
    with Loggers(["tensorboard"], run) as loggers:
        run.log(record(2, loss=7.0))
        loggers.log(record(2, loss=7.0))
    assert points(run.folder) == curves([record(1), record(2, loss=7.0)])


def test_killed_run_keeps_its_points(run):
    code = (
        "import os, sys\nfrom pathlib import Path\n"
        "from divconq.training.loggers import Loggers\nfrom divconq.runs.folder import Run\n"
        "loggers = Loggers(['tensorboard'], Run.open(Path(sys.argv[1])))\n"
        f"for epoch in (1, 2): loggers.log({{**{record(1)}, 'epoch': epoch}})\n"
        f"os.kill(os.getpid(), {int(signal.SIGKILL)})\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run.folder)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert points(run.folder)["loss"] == [(1, 1.0), (2, 1.0)]


def test_wandb_continues_the_same_run_after_resume(run, wandb):
    with Loggers(["wandb"], run) as loggers:
        for epoch in (1, 2, 3):
            run.log(record(epoch))
            loggers.log(record(epoch))
    run.rewind(1, 1, run.config)
    with contextlib.suppress(KeyboardInterrupt), Loggers(["wandb"], run) as loggers:
        for epoch in (2, 3, 4):
            run.log(record(epoch))
            loggers.log(record(epoch))
        raise KeyboardInterrupt
    first, second = wandb.started
    assert first == second
    assert (first["project"], first["name"], first["resume"]) == ("divconq", "my run", "allow")
    assert first["config"]["k_max"] == 8
    json.dumps(first["config"])
    assert first["dir"] == str(run.folder)
    assert wandb.points == {first["id"]: [(epoch, scalars(record(epoch))) for epoch in (1, 2, 3, 4)]}
    assert wandb.ended == [0, 1]


def test_wandb_added_on_resume_receives_earlier_epochs(run, wandb):
    for epoch in (1, 2):
        run.log(record(epoch))
    Loggers(["wandb"], run)
    assert [step for step, _ in next(iter(wandb.points.values()))] == [1, 2]


def test_failing_logger_is_removed_and_others_continue(run, wandb):
    with Loggers(["wandb", "tensorboard"], run) as loggers:
        loggers.log(record(1))
        wandb.broken = True
        with pytest.warns(
            UserWarning,
            match=r"--wandb failed .* \(the server is gone\); training continues",
        ):
            loggers.log(record(2))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loggers.log(record(3))
    assert [step for step, _ in points(run.folder)["loss"]] == [1, 2, 3]


def test_a_logger_that_cannot_start_does_not_end_the_run(run, wandb, monkeypatch):
    monkeypatch.setattr(wandb, "init", lambda **arguments: 1 / 0)
    with pytest.warns(UserWarning, match="--wandb failed"), Loggers(["wandb"], run) as loggers:
        loggers.log(record(1))


def test_only_first_process_has_loggers(run, wandb, monkeypatch):
    monkeypatch.setattr("divconq.distributed.first_process.rank", lambda: 1)
    run.log(record(1))
    with Loggers(["tensorboard", "wandb"], run) as loggers:
        loggers.log(record(2))
    assert wandb.started == []
    assert not (run.folder / "tensorboard").exists()


@pytest.mark.parametrize(("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb")])
def test_missing_package_is_an_error_before_training(name, module, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["train", "--data", "nowhere", f"--{name}"])  # which would be the next error
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert f"--{name} needs a package that cannot be imported" in error
    assert f"install it with: pip install {name}" in error
    assert not list(tmp_path.iterdir())


def test_missing_wandb_login_is_an_error(wandb):
    check_loggers(["wandb"])
    wandb.settings.mode = "online"
    with pytest.raises(
        ValueError, match=r"cannot log in \(No API key .*; run wandb login first, or set WANDB_MODE"
    ):
        check_loggers(["wandb"])


def test_folder_called_wandb_is_not_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", ModuleType("wandb"))
    with pytest.raises(ValueError, match="pip install wandb"):
        check_loggers(["wandb"])


def test_stopped_run_prints_resume_command_with_loggers(photos, tmp_path, capsys, monkeypatch):
    def interrupted(config, out, **arguments):
        Run.create(out, config)
        raise KeyboardInterrupt

    monkeypatch.setattr("divconq.train.train", interrupted)
    with pytest.raises(SystemExit):
        main(["train", "--data", str(photos), "--out", str(tmp_path / "run"), "--tensorboard"])
    assert f"--resume {tmp_path / 'run'} --tensorboard" in capsys.readouterr().err
