import copy
import itertools
import math
import warnings

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ChainedScheduler, CosineAnnealingLR, LinearLR, SequentialLR, StepLR

from divconq.accel.graphs import Captured
from divconq.cli import main
from divconq.config import OptimisationConfig
from divconq.runs.folder import Run
from divconq.train import train
from divconq.training.learning_rate import LearningRate, lr_factor
from divconq.training.optimizer import make_optimizer
from divconq.training.step import TrainingStep
from test_resume import stopped_and_resumed

EPOCHS = 12
TINY_START = 1e-12  # LinearLR cannot start at 0


def rates_of_torch(make, count):
    """The factors of one of torch's schedulers before each of its steps."""
    sgd = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler, factors = make(sgd), []
    for _ in range(count):
        factors.append(sgd.param_groups[0]["lr"])
        sgd.step()
        scheduler.step()
    return factors


def warm(sgd, length):
    return LinearLR(sgd, TINY_START, total_iters=length)


def cosine_after(sgd, warmup, total):
    parts = [warm(sgd, warmup), CosineAnnealingLR(sgd, total - warmup)]
    return SequentialLR(sgd, parts, milestones=[warmup])


SCHEDULES = {
    "cosine": ({"schedule": "cosine"}, lambda sgd, n: CosineAnnealingLR(sgd, EPOCHS * n)),
    "step": (
        {"schedule": "step", "lr_drop_every": 5, "lr_drop": 0.3},
        lambda sgd, n: StepLR(sgd, 5 * n, gamma=0.3),
    ),
    "warm-up": ({"warmup_epochs": 3}, lambda sgd, n: warm(sgd, 3 * n)),
    "warm-up and cosine": (
        {"schedule": "cosine", "warmup_epochs": 4},
        lambda sgd, n: cosine_after(sgd, 4 * n, EPOCHS * n),
    ),
    "warm-up and step": (
        {"schedule": "step", "lr_drop_every": 2, "lr_drop": 0.5, "warmup_epochs": 3},
        lambda sgd, n: ChainedScheduler([warm(sgd, 3 * n), StepLR(sgd, 2 * n, gamma=0.5)]),
    ),
}


@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize("name", SCHEDULES)
def test_factors_are_those_of_torch(name, steps):
    """With one step an epoch, these are the boundaries of the epochs."""
    chosen, make = SCHEDULES[name]
    settings = OptimisationConfig(epochs=EPOCHS, **chosen)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SequentialLR calls its parts in a way that torch itself warns of
        expected = rates_of_torch(lambda sgd: make(sgd, steps), EPOCHS * steps)
    got = [lr_factor(epoch + step / steps, settings) for epoch in range(EPOCHS) for step in range(steps)]
    assert got == pytest.approx(expected, abs=1e-9)
    assert len({*got}) > 2


def slow_factor(progress, settings):
    """The factor as the sentences of the settings define it."""
    factor = 1.0
    if settings.schedule == "step":
        drops = [drop for drop in range(1, EPOCHS + 1) if drop * settings.lr_drop_every <= progress]
        for _ in drops:
            factor *= settings.lr_drop
    if settings.schedule == "cosine" and progress >= settings.warmup_epochs:
        way = (progress - settings.warmup_epochs) / (settings.epochs - settings.warmup_epochs)
        factor *= math.cos(math.pi * way / 2) ** 2
    if progress < settings.warmup_epochs:
        factor *= progress / settings.warmup_epochs
    return factor


@pytest.mark.parametrize("warmup", [0.0, 0.3, 1.0, 4.5])
@pytest.mark.parametrize("schedule", ["constant", "cosine", "step"])
def test_factors_equal_their_slow_twin_in_epochs_of_any_length(schedule, warmup):
    settings = OptimisationConfig(
        epochs=EPOCHS, schedule=schedule, warmup_epochs=warmup, lr_drop_every=3, lr_drop=0.2
    )
    for epoch in range(EPOCHS):
        for step in range(epoch + 1):
            progress = epoch + step / (epoch + 1)
            assert lr_factor(progress, settings) == pytest.approx(slow_factor(progress, settings), abs=1e-12)


def test_a_constant_rate_is_one_at_any_time():
    settings = OptimisationConfig(epochs=EPOCHS)
    assert {lr_factor(progress, settings) for progress in (0, 0.5, 7.25, 11.9)} == {1.0}


def groups():
    """Adam over two groups with rates of their own."""
    network = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    adam = make_optimizer(network, lr=1e-3, weight_decay=0)
    adam.add_param_group({"params": [nn.Parameter(torch.ones(2))], "lr": 0.5})
    return adam


def test_each_group_keeps_its_own_rate():
    adam = groups()
    rate = LearningRate(adam, OptimisationConfig(epochs=10, schedule="step", lr_drop_every=2))
    for progress, factor in ((0, 1), (1.9, 1), (2, 0.1), (5, 0.01), (1, 1)):
        rate.set(progress)
        assert [group["lr"] for group in adam.param_groups] == pytest.approx([1e-3 * factor, 0.5 * factor])
        assert rate.logged(progress) == {"lr": pytest.approx(1e-3 * factor)}


def test_a_constant_rate_is_never_touched():
    adam = groups()
    before = [group["lr"] for group in adam.param_groups]
    rate = LearningRate(adam, OptimisationConfig(epochs=10))
    rate.set(3.5)
    assert all(group["lr"] is lr for group, lr in zip(adam.param_groups, before, strict=True))
    assert rate.logged(3.5) == {}


def test_a_rate_that_is_a_tensor_is_filled_in_place():
    """As on a GPU, where a captured step reads it; also after the optimiser was restored."""
    adam = groups()
    rate = LearningRate(adam, OptimisationConfig(epochs=10, schedule="cosine"))
    for group in adam.param_groups:
        group["lr"] = torch.tensor(group["lr"])
    adam.load_state_dict(copy.deepcopy(adam.state_dict()))
    places = [group["lr"].data_ptr() for group in adam.param_groups]
    rate.set(5.0)
    assert [group["lr"].data_ptr() for group in adam.param_groups] == places
    assert [float(group["lr"]) for group in adam.param_groups] == pytest.approx([5e-4, 0.25])


# In a run


def rates_of_steps(monkeypatch):
    """The list of the learning rates of all groups in every step of the runs to come."""
    seen, real = [], TrainingStep.__call__

    def noted(step, *batch):
        seen.append([group["lr"] for group in step.optimizer.param_groups])
        return real(step, *batch)

    monkeypatch.setattr(TrainingStep, "__call__", noted)
    return seen


def test_a_run_follows_its_schedule_and_logs_it(tiny, tmp_path, monkeypatch):
    seen = rates_of_steps(monkeypatch)
    config = tiny.replace(schedule="cosine", warmup_epochs=1, lr=1e-3, mask_lr_scale=10.0, head_lr_scale=2.0)
    records = train(config, tmp_path / "run")
    factors = [lr_factor(epoch + step / 4, config.optimisation) for epoch in range(4) for step in range(4)]
    assert factors[:5] == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    assert seen == [pytest.approx([1e-3 * f, 2e-3 * f, 1e-2 * f]) for f in factors]
    assert [record["lr"] for record in records] == [1e-3 * factor for factor in factors[3::4]]
    plain = train(tiny.replace(lr=1e-3), tmp_path / "plain")
    assert not any("lr" in record for record in plain)
    assert all(type(lr) is float for lrs in seen[16:] for lr in lrs)
    assert {tuple(lrs) for lrs in seen[16:]} == {(1e-3, 1e-3 * tiny.masks.lr_scale)}


def test_a_resumed_epoch_continues_its_schedule(tiny, tmp_path, monkeypatch):
    config = tiny.replace(schedule="cosine", epochs=3)
    seen = rates_of_steps(monkeypatch)
    train(config, tmp_path / "whole")
    whole = list(seen)
    seen.clear()
    stopped_and_resumed(config, tmp_path / "run", monkeypatch, 6, 2)
    assert seen == whole
    assert len({lrs[0] for lrs in seen}) == 12


@pytest.mark.parametrize(("schedule", "allowed"), [("constant", True), ("step", True), ("cosine", False)])
def test_more_epochs_on_resume_are_refused_if_the_schedule_depends_on_them(
    tiny, tmp_path, capsys, schedule, allowed
):
    out = str(tmp_path / "run")
    train(tiny.replace(epochs=1, schedule=schedule), tmp_path / "run")
    command = ["train", "--resume", out, "--epochs", "2"]
    if allowed:
        main(command)
        assert "every epoch is trained as before" in capsys.readouterr().err
    else:
        with pytest.raises(SystemExit):
            main(command)
        assert "these would change its result: epochs from 1 to 2" in capsys.readouterr().err
        main([*command, "--accept-changes"])
        assert "changed: epochs from 1 to 2 (accepted: the result changes)" in capsys.readouterr().err
    assert len(Run.open(out).metrics()) == 2


# On a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_a_captured_step_reads_the_rate_of_every_replay(kind):
    device, settings = torch.device("cuda"), OptimisationConfig(epochs=4, schedule="cosine", warmup_epochs=1)
    torch.manual_seed(0)
    first = nn.Linear(3, 2).to(device)
    networks, ends = [first, copy.deepcopy(first)], []
    for network, capture in zip(networks, (False, True), strict=True):
        adam = make_optimizer(network, lr=1e-2, weight_decay=0.1, kind=kind)
        rate = LearningRate(adam, settings)

        def step(x, network=network, adam=adam):
            loss = network(x).square().mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            return (loss.detach(),)

        call = Captured(step, device) if capture else step
        for number in range(16):
            rate.set(number / 4)
            call(torch.rand(5, 3, generator=torch.Generator().manual_seed(number)).to(device))
            ends.append(network.weight.detach().clone())
        assert not capture or call.graph is not None
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(ends[:16], ends[16:], strict=True))
    moves = [(b - a).abs().max() for a, b in itertools.pairwise(ends[16:])]
    assert moves[-1] < 0.2 * max(moves), "the last steps are short"
