"""A run that was stopped and resumed ends like a run that was not stopped."""

import errno
import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch

from divconq.cli import main
from divconq.config import to_yaml
from divconq.losses import LOSSES
from divconq.presets import preset
from divconq.runs.folder import Run
from divconq.train import train
from divconq.training.step import TrainingStep
from divconq.training.stop_signals import Stopped, StopSignals
from killed_runs import DEATHS

TIMINGS = ("images_per_s", "seconds")


def without_timings(records):
    return [{name: value for name, value in record.items() if name not in TIMINGS} for record in records]


def same(a, b):
    """Return whether two nested states are equal bit by bit."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def assert_same_runs(whole, other):
    whole, other = Run.open(whole), Run.open(other)
    files = [
        sorted(path.relative_to(run.folder).as_posix() for path in run.folder.rglob("*"))
        for run in (whole, other)
    ]
    assert files[0] == files[1], "nothing is missing, and nothing is left behind"
    assert without_timings(whole.metrics()) == without_timings(other.metrics())
    for which in ("last", "best"):
        for part, value in whole.load(which).items():
            assert same(value, other.load(which)[part]), (which, part)
    for name in files[0]:
        if name.endswith(".safetensors"):
            assert (whole.folder / name).read_bytes() == (other.folder / name).read_bytes(), name


class StopAt(StopSignals):
    """Receives a signal in step ``step``, counted over all epochs."""

    def __init__(self, monkeypatch, step, number=signal.SIGINT):
        super().__init__()
        real, left = TrainingStep.__call__, [step]

        def counted(training_step, *batch):
            left[0] -= 1
            if left[0] == 0:
                self.number = number
            return real(training_step, *batch)

        monkeypatch.setattr(TrainingStep, "__call__", counted)


def stopped_and_resumed(config, out, monkeypatch, *steps):
    """Train; stop after each of these numbers of steps and resume."""
    for number, step in enumerate(steps):
        with pytest.raises(Stopped), monkeypatch.context() as patch:
            train(config, out, resume=number > 0, stop=StopAt(patch, step))
    return train(config, out, resume=True)


@pytest.fixture
def small(tiny):
    return tiny.replace(epochs=3, k_max=2, augmentation="geom+color", crop="random_resized")


@pytest.mark.parametrize("steps", [(1,), (4,), (7, 1), (2, 3, 3)])
def test_a_run_stopped_at_any_step_ends_like_one_that_was_not(small, tmp_path, monkeypatch, steps):
    """An epoch has four steps; the second and the third begin with a division."""
    train(small, tmp_path / "whole")
    stopped_and_resumed(small, tmp_path / "run", monkeypatch, *steps)
    assert_same_runs(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize(
    "change",
    [
        {"division": "flat", "cluster_order": "round_robin"},
        {"division": "random-again", "k_max": 4, "epoch_length": "largest", "cluster_steps": "equal"},
        {"per_class": 2, "class_sampling": "classes", "epoch_length": "smallest"},
        {"masks": "fixed", "finetune_from": 1},
        {"masks": "rotating", "division": "flat", "k_max": 4},
        {"mask_activation": "projected", "mask_lr_scale": 300.0, "mask_split_noise": 0.2},
        {"mask_activation": "softplus", "mask_lr_scale": 300.0, "mask_reset": False},
        {"freeze_backbone_epochs": 1, "freeze_batchnorm": False},
        {"per_class": 2, "dropout": 0.5, "eval_every": 2},
        {"loss": "proxy_anchor", "masks": "fixed"},
        {"trained": "head", "dropout": 0.5, "freeze_backbone_epochs": 1, "finetune_from": 2},
        {"trained": "head", "cache": False, "cluster_on": "features", "val_classes": 2},
        {"loss": "ProxyAnchorLoss", "augmentation": "color-heavy", "val_classes": 2},
        {"augmentation": "geom+color-authors", "decode_size": 30},
        {"loss": "MultiSimilarityLoss", "miner": "BatchEasyHardMiner", "cache": False},
        {"ema": 0.9, "schedule": "cosine", "warmup_epochs": 0.5, "optimizer": "adamw", "weight_decay": 10.0},
    ],
    ids=lambda change: "-".join(f"{name}={value}" for name, value in change.items()),
)
def test_resuming_works_with_every_switch(small, tmp_path, monkeypatch, change):
    config = small.replace(**change)
    train(config, tmp_path / "whole")
    stopped_and_resumed(config, tmp_path / "run", monkeypatch, 6, 1)
    assert_same_runs(tmp_path / "whole", tmp_path / "run")


def test_every_generator_continues_where_it_stopped(small, tmp_path, monkeypatch):
    class Draws(torch.nn.Module):
        """A loss with random numbers of three kinds."""

        def forward(self, z, labels):
            return (z * torch.randn_like(z)).sum() * random.random() * np.random.rand()

    monkeypatch.setattr(
        jaxtyping.config, "jaxtyping_disable", True
    )  # the type checker draws random numbers too
    monkeypatch.setitem(LOSSES, "draws", Draws)
    config = small.replace(loss="draws")
    train(config, tmp_path / "whole")
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # other states than before
    stopped_and_resumed(config, tmp_path / "run", monkeypatch, 3, 4)
    assert_same_runs(tmp_path / "whole", tmp_path / "run")


def test_resuming_reads_no_earlier_image_and_repeats_no_division(small, tmp_path, monkeypatch):
    config = small.replace(epochs=2)
    with pytest.raises(Stopped), monkeypatch.context() as patch:
        train(config, tmp_path / "run", stop=StopAt(patch, 7))
    state = Run.open(tmp_path / "run").load()
    assert (state["epoch"], state["step"], len(state["losses"])) == (1, 3, 3)
    assert state["divide_and_conquer"]["_extra_state"]["k"] == 2
    assert set(state["seconds"]) == {"divide", "train"}
    trained = []
    real = TrainingStep.__call__
    monkeypatch.setattr(TrainingStep, "__call__", lambda *args: trained.append(1) or real(*args))
    monkeypatch.setattr(
        "divconq.divide_and_conquer.divide", lambda *args, **kwargs: pytest.fail("divided again")
    )
    (_, record) = train(config, tmp_path / "run", resume=True)
    assert len(trained) == 1
    assert record["seconds"]["divide"] == state["seconds"]["divide"]
    assert record["seconds"]["train"] > state["seconds"]["train"]
    assert record["images_per_s"] == pytest.approx(48 / record["seconds"]["train"])


def test_a_changed_schedule_does_not_divide_within_an_epoch(small, tmp_path, monkeypatch):
    """The second epoch becomes a division epoch after half of its steps."""
    config = small.replace(epochs=3, divide_every=5)
    with pytest.raises(Stopped), monkeypatch.context() as patch:
        train(config, tmp_path / "run", stop=StopAt(patch, 6))
    records = train(config.replace(divide_every=1), tmp_path / "run", resume=True)
    assert [record["k"] for record in records] == [1, 1, 2]


def test_a_run_killed_thirty_times_ends_like_one_that_was_not(tiny, tmp_path):
    """SIGKILL at chosen places and at random times."""
    config = tiny.replace(
        k_max=4,
        epochs=16,  # enough for every process to reach the place where it is killed
        divide_every=2,
        augmentation="geom+color",
        nmi=False,
        save_minutes=60.0,
        save_steps=2,
    )
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    command = [
        Path(__file__).with_name("killed_runs.py"),
        *(tmp_path / name for name in ("config.yaml", "whole", "run")),
    ]
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, check=True, timeout=600
    )
    ends = json.loads(done.stdout)
    assert ends.pop("whole") == ends.pop("last") == 0, done.stderr
    forced = {name for name, arm in DEATHS.items() if arm is not None}
    assert {name for name in forced if ends[name] != signal.SIGKILL} == set(), done.stderr
    assert sum(end == signal.SIGKILL for end in ends.values()) >= 20
    assert_same_runs(tmp_path / "whole", tmp_path / "run")


def test_a_damaged_last_checkpoint_costs_some_steps_and_nothing_else(small, tmp_path, monkeypatch):
    config = small.replace(save_steps=2)
    train(config, tmp_path / "whole")
    with pytest.raises(Stopped), monkeypatch.context() as patch:
        train(config, tmp_path / "run", stop=StopAt(patch, 7))
    content = bytearray((tmp_path / "run" / "last.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "run" / "last.pt").write_bytes(content)
    with pytest.warns(UserWarning, match=r"last.pt is damaged .*; using the previous one, previous.pt"):
        train(config, tmp_path / "run", resume=True)
    assert_same_runs(tmp_path / "whole", tmp_path / "run")


def test_a_state_that_is_not_finite_is_never_saved(small, tmp_path, monkeypatch):
    """On a GPU losses are read only where that costs nothing, for example at a checkpoint."""
    from divconq.training.nan_guard import NaNGuard

    class Fails(torch.nn.Module):
        calls = 0

        def forward(self, z, labels):
            self.calls += 1
            return z.sum() * (float("nan") if self.calls == 3 else 1.0)

    monkeypatch.setitem(LOSSES, "fails", Fails)
    real = NaNGuard.__init__

    def as_on_a_gpu(guard, *args, **kwargs):
        real(guard, *args, **kwargs)
        guard.checks_every_step = False

    monkeypatch.setattr(NaNGuard, "__init__", as_on_a_gpu)
    with pytest.raises(FloatingPointError, match="nan at epoch 1, step 3 of 4"):
        train(small.replace(loss="fails", save_steps=2), tmp_path / "run")
    assert Run.open(tmp_path / "run").load()["step"] == 2


def test_a_best_epoch_that_was_only_in_memory_is_not_lost(small, tmp_path, monkeypatch):
    """The best epoch is written with the next checkpoint; a run killed before it resumes from an older one."""
    scores = iter([0.1, 0.9, 0.5, 0.9, 0.5])

    def scored(job, train):
        return {"recall@1": next(scores), "spread": 1.0}

    monkeypatch.setattr("divconq.training.setup.Job.scores", scored)
    real = Run.log

    def log(run, record):
        if record["epoch"] == 3:
            raise RuntimeError("killed")
        real(run, record)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "log", log)
        with pytest.raises(RuntimeError, match="killed"):
            train(small, tmp_path / "run")
    run = Run.open(tmp_path / "run")
    assert [record["epoch"] for record in run.metrics()] == [1, 2]
    assert (run.load("last")["epoch"], run.load("best")["epoch"]) == (1, 1)
    train(small, tmp_path / "run", resume=True)
    assert (run.load("last")["epoch"], run.load("best")["epoch"], run.load("best")["best"]) == (3, 2, 0.9)


# Signals


def flags(config, **changes):
    values = config.replace(**changes).settings()
    names = [
        "data",
        "image_size",
        "resize",
        "backbone",
        "dim",
        "batch",
        "epochs",
        "divide_every",
        "k_max",
        "lr",
    ]
    names += ["workers", "device", "loss"]
    words = [word for name in names for word in (f"--{name.replace('_', '-')}", str(values[name]))]
    return [*words, "--no-pretrained", "--ks", "1", "2"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_a_real_process_saves_and_says_how_to_continue(tiny, tmp_path, number, capsys):
    out = tmp_path / "my run"
    command = [sys.executable, "-m", "divconq", "train", "--out", str(out), *flags(tiny, epochs=10_000)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for _ in range(600):
        if (out / "last.pt").exists():
            break
        time.sleep(0.1)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert f"stopped; continue with: divconq train --resume '{out}'" in said
    assert "Traceback" not in said
    assert not list(out.glob(".*"))
    epochs = Run.open(out).load()["epoch"] + 1
    main(["train", "--resume", str(out), "--epochs", str(epochs)])
    main(["train", "--out", str(tmp_path / "whole"), *flags(tiny, epochs=epochs)])
    capsys.readouterr()
    assert_same_runs(tmp_path / "whole", out)


def test_the_first_signal_is_stored_and_the_second_stops_at_once():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with StopSignals() as stop:
        stop.patient = True
        signal.raise_signal(signal.SIGINT)
        assert stop.wished
        assert stop.stopped().code == 130
        with pytest.raises(Stopped) as stopped:
            signal.raise_signal(signal.SIGTERM)
        assert stopped.value.code == 143
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_before_training_a_signal_stops_at_once_and_handlers_are_restored():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt) as stopped, StopSignals():
        signal.raise_signal(signal.SIGTERM)
    assert stopped.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_run_in_a_thread_has_no_handlers_and_trains(small, tmp_path):
    before, records = signal.getsignal(signal.SIGINT), []

    def work():
        with StopSignals() as stop:
            assert signal.getsignal(signal.SIGINT) == before
            records.extend(train(small.replace(epochs=1), tmp_path / "run", stop=stop))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [record["epoch"] for record in records] == [1]


def test_a_run_without_stop_leaves_signals_alone(small, tmp_path, monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *args: pytest.fail("a handler was set"))
    train(small.replace(epochs=1), tmp_path / "run")


def test_a_signal_in_the_evaluation_stops_at_the_end_of_the_epoch(small, tmp_path, monkeypatch):
    from divconq.training.setup import Job

    stop, real = StopSignals(), Job.scores
    monkeypatch.setattr(
        Job, "scores", lambda job, train: setattr(stop, "number", signal.SIGTERM) or real(job, train)
    )
    with pytest.raises(Stopped):
        train(small, tmp_path / "run", stop=stop)
    state = Run.open(tmp_path / "run").load()
    assert (state["epoch"], state["step"]) == (1, 0)


# A full disk


@pytest.mark.parametrize(
    ("owner", "name", "number"), [(torch, "save", 3), (os, "fsync", 9), (os, "fsync", 10), (Run, "log", 1)]
)
def test_a_full_disk_ends_the_run_and_it_resumes_with_space(
    tiny, tmp_path, capsys, monkeypatch, owner, name, number
):
    out, arguments = tmp_path / "run", flags(tiny, epochs=3)
    main(["train", "--out", str(tmp_path / "whole"), *arguments])
    real, calls = getattr(owner, name), itertools.count(1)

    def full(*args):
        if next(calls) == number:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, full)
        with pytest.raises(SystemExit) as stop:
            main(["train", "--out", str(out), "--save-steps", "1", *arguments])
    assert stop.value.code == 1
    said = capsys.readouterr().err
    assert "the disk is full ([Errno 28] No space left on device" in said
    assert owner is Run or f"device: '{out}/" in said, "the file is named"
    assert f"free space, then continue with: divconq train --resume {out}" in said
    assert not list(out.rglob(".*")), "no half-written file is left"
    assert Run.open(out).load()["step"] > 0
    main(["train", "--resume", str(out)])
    assert_same_runs(tmp_path / "whole", out)


@pytest.mark.gpu
@pytest.mark.parametrize("loss", ["margin", "MultiSimilarityLoss"])
def test_a_gpu_resumes_in_the_middle_of_an_epoch(tmp_path, monkeypatch, loss):
    """With captured graphs in bf16, the losses after the stop equal those of an uninterrupted run up to rounding.

    The margin loss draws negatives and dropout draws units inside the graph; other random numbers would change the
    losses much more. A repeated run measures the rounding.
    """
    torch.compiler.reset()
    config = preset("demo").replace(loss=loss, epochs=2, divide_every=1, k_max=2, dropout=0.2, lr=1e-4,
        device="cuda", precision="bf16", eval_every=2,
    )  # fmt: skip
    losses = {}
    real = TrainingStep.__call__

    def noted(name):
        losses[name] = []

        def call(step, *batch):
            loss, finite = real(step, *batch)
            losses[name].append(float(loss))
            return loss, finite

        return call

    with warnings.catch_warnings():
        if loss == "margin":
            warnings.filterwarnings("error", message=".*cannot be (compiled or )?captured")
        else:
            warnings.filterwarnings("ignore", message=".*cannot be (compiled or )?captured")
        for name in ("whole", "again"):
            with monkeypatch.context() as patch:
                patch.setattr(TrainingStep, "__call__", noted(name))
                train(config, tmp_path / name)
        steps = len(losses["whole"]) // 2
        with monkeypatch.context() as patch:
            patch.setattr(TrainingStep, "__call__", noted("before"))
            with pytest.raises(Stopped):
                train(config, tmp_path / "run", stop=StopAt(patch, steps + steps // 2))
        state = Run.open(tmp_path / "run").load()
        assert (state["epoch"], state["step"]) == (1, steps // 2)
        assert "cuda" in state["generators"]
        with monkeypatch.context() as patch:
            patch.setattr(TrainingStep, "__call__", noted("after"))
            records = train(config, tmp_path / "run", resume=True)
    resumed = losses["before"] + losses["after"]
    assert len(resumed) == len(losses["whole"])
    assert all(map(math.isfinite, resumed))
    whole, again, resumed = (torch.tensor(values) for values in (losses["whole"], losses["again"], resumed))
    rounding = (whole - again).abs().mean() + 0.01 * whole.abs().mean()
    assert (whole - resumed)[-len(losses["after"]) :].abs().mean() < 3 * rounding
    assert records[-1]["loss"] == pytest.approx(float(whole[steps:].mean()), rel=0.03)


def test_a_damaged_best_epoch_is_named_on_resume(small, tmp_path):
    train(small.replace(epochs=1), tmp_path / "run")
    best = tmp_path / "run" / "best.pt"
    best.write_bytes(best.read_bytes()[:-9])
    with pytest.warns(
        UserWarning, match=r"best\.pt is damaged .*; a later epoch replaces it only if it is better"
    ):
        train(small, tmp_path / "run", resume=True)
