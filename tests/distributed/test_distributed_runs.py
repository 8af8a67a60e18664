"""Whole runs in several processes."""

import functools
import os
import pkgutil
import signal
import warnings

import pytest
import torch
from safetensors.torch import load_file

from distributed.ranks import Ranks, needs_gloo, raised_by, run, together
from divconq.accel.device import threads
from divconq.distributed import process_group, rank, size
from divconq.presets import preset
from divconq.runs.folder import Run
from divconq.train import train
from divconq.training.step import TrainingStep
from divconq.training.stop_signals import Stopped, StopSignals
from killed_runs import at_call
from test_resume import assert_same_runs

pytestmark = needs_gloo


@pytest.fixture
def smooth(tiny):
    """A run in which rounding errors stay small: small steps, and no dropout, which differs between ranks."""
    return tiny.replace(lr=1e-5, mask_lr_scale=1.0, dropout=0.0, augmentation="geom+color")


def files_of(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.mark.parametrize(
    ("ranks", "change"),
    [
        (2, {"epochs": 3, "save_steps": 3}),
        (2, {"epochs": 3, "trained": "head"}),
        (4, {"epochs": 2, "batch": 10, "val_classes": 3, "loss": "MultiSimilarityLoss", "cache": False}),
    ],
)
def test_a_run_of_several_processes_is_the_run_of_one(smooth, tmp_path, ranks, change):
    config = smooth.replace(**change)
    alone = train(config, tmp_path / "alone")
    told = run(ranks, functools.partial(train, config, tmp_path / "run"), tmp_path / "ranks")
    assert all(records == told[0] for records in told), "all are told what the first has written"
    assert files_of(tmp_path / "run") == files_of(tmp_path / "alone")
    for one, other in zip(told[0], alone, strict=True):
        assert one.keys() == other.keys()
        for name in one.keys() - {"seconds", "images_per_s"}:
            assert one[name] == pytest.approx(other[name], abs=1e-5 if name == "loss" else 1e-6), name
    for name in (
        f"divisions/epoch_{epoch:04d}.safetensors" for epoch in range(1, config.optimisation.epochs)
    ):
        one, other = (load_file(tmp_path / run / name) for run in ("run", "alone"))
        assert len(one["clusters"].unique()) == 2
        assert torch.equal(one["clusters"], other["clusters"])
        assert torch.allclose(one["masks"], other["masks"], atol=1e-5)
    one, other = (load_file(tmp_path / run / "model.safetensors") for run in ("run", "alone"))
    assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in other)


def test_the_first_process_fits_the_mixture_of_clml(smooth, tmp_path):
    """Its components are those of one process, up to rounding."""
    config = smooth.replace(head="clml", masks="none", test_classes=0.25, k_max=4, epochs=2)
    alone = train(config, tmp_path / "alone")
    told = run(2, functools.partial(train, config, tmp_path / "run"), tmp_path / "ranks")
    assert told[0] == told[1]
    assert told[0][-1]["loss"] == pytest.approx(alone[-1]["loss"], abs=1e-4)
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("run", "alone"))
    for name in ("head.log_weights", "head.weight", "head.bias"):
        assert torch.allclose(one[name], other[name], atol=1e-2), name


def test_dropout_differs_between_ranks_and_a_resumed_run_draws_it_again(smooth, tmp_path):
    """Also with another number of processes: a checkpoint does not depend on it."""
    config = smooth.replace(epochs=2, dropout=0.5)
    run(2, functools.partial(train, config, tmp_path / "whole"), tmp_path / "ranks")
    run(2, functools.partial(stopped, config, tmp_path / "run", after=6), tmp_path / "ranks")
    assert Run.open(tmp_path / "run").load()["step"] == 2
    run(2, functools.partial(train, config, tmp_path / "run", resume=True), tmp_path / "ranks")
    assert_same_runs(tmp_path / "whole", tmp_path / "run")
    train(config.replace(epochs=3), tmp_path / "run", resume=True)
    assert len(Run.open(tmp_path / "run").metrics()) == 3


def stopped(config, out, after):
    """Train, send SIGTERM to the last rank in step ``after``; return the number of steps and the exit code."""

    def tell(step):
        if step == after and rank() == size() - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    calls = counted(TrainingStep, "__call__", tell)
    with StopSignals() as stop:
        try:
            train(config, out, stop=stop)
        except Stopped as error:
            return len(calls), error.code


def counted(owner, name, tell):
    """Return the list of calls of a function; ``tell`` gets the number of each call before it happens."""
    real, calls = getattr(owner, name), []

    def counting(*args):
        calls.append(args)
        tell(len(calls))
        return real(*args)

    setattr(owner, name, counting)
    return calls


def test_a_signal_to_one_stops_all_after_the_same_step_with_one_checkpoint(smooth, tmp_path):
    told = run(3, functools.partial(stopped, smooth, tmp_path / "run", after=6), tmp_path / "ranks")
    assert told == [(6, 130), (6, 130), (6, 143)]
    state = Run.open(tmp_path / "run").load()
    assert (state["epoch"], state["step"]) == (1, 2)


def refused(config, out):
    own = config.replace(data="nowhere") if rank() == 1 else config
    few = config.replace(batch=2)
    return [raised_by(functools.partial(train, one, out)) for one in (own, few)]


def test_an_error_of_one_rank_is_raised_by_all(smooth, tmp_path):
    told = run(3, functools.partial(refused, smooth, tmp_path / "run"), tmp_path / "ranks")
    for lacks, few in told:
        assert lacks.startswith("ValueError: no dataset is called 'nowhere'")
        assert few.startswith(
            "ValueError: 3 processes share the images of every batch and split, and there are only 2"
        )
    assert not (tmp_path / "run").exists()


def train_and_die(config, out, which, owner, name, number):
    """Train; one rank is killed at call ``number`` of a function."""
    if rank() == which:
        at_call(pkgutil.resolve_name(owner), name, number)
    train(config, out)


@pytest.mark.parametrize(
    ("which", "death"),
    [
        (1, ("divconq.training.step:TrainingStep", "__call__", 6)),
        (0, ("divconq.divide_and_conquer", "divide", 1)),
        (0, ("divconq.runs.checkpoints", "save", 1)),
    ],
)
def test_a_rank_killed_in_a_run_ends_the_others_with_a_message(smooth, tmp_path, which, death):
    work = functools.partial(train_and_die, smooth, tmp_path / "run", which, *death)
    ranks = Ranks(2, functools.partial(raised_by, functools.partial(together, work)), tmp_path)
    assert ranks.join() == [-signal.SIGKILL if r == which else 0 for r in range(2)]
    said = torch.load(ranks.files[1 - which])
    assert said.startswith(f"ConnectionError: rank {1 - which}: another process of this run has ended")


def test_the_processes_of_a_machine_share_its_cores(monkeypatch):
    monkeypatch.setattr("divconq.accel.device.cpus", lambda: 8)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert (threads(0), threads(3)) == (2, 3)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "16")
    assert threads(0) == 1


def on_one_gpu(config, out):
    """Use gloo, which unlike NCCL lets two processes share a GPU; the network must be captured."""
    torch.distributed.init_process_group("gloo")
    warnings.filterwarnings("error", message=".*cannot be (compiled or )?captured")
    with process_group(torch.device("cuda")):
        return train(config, out)


@pytest.mark.gpu
def test_two_processes_on_a_gpu_train_as_one(tmp_path):
    config = preset("demo").replace(
        loss="npairs",
        dropout=0.0,
        epochs=2,
        k_max=1,
        lr=1e-4,
        device="cuda",
        precision="fp32",
    )
    alone = train(config, tmp_path / "alone")
    told = Ranks(2, functools.partial(on_one_gpu, config, tmp_path / "run"), tmp_path).results()
    for one, other in zip(told[0], alone, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-2)
        assert one["recall@1"] == pytest.approx(other["recall@1"], abs=0.03)
