import contextlib
import copy
import dataclasses
import functools
import io
import multiprocessing
import os
import pkgutil
import random
import runpy
import signal
import socket
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jaxtyping
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from divconq.accel.device import threads
from divconq.cli import main
from divconq.distributed.collectives import (
    _attempt_name,
    anywhere,
    average_gradients,
    gather,
    joined,
    on_every,
    on_first,
    own_randomness,
    rank,
    shard,
    share_batchnorm,
    size,
    synchronise,
)
from divconq.losses import make_loss
from divconq.masks import Masks
from divconq.model import Embedder, SmallNet
from divconq.objective import Objective
from divconq.presets import preset
from divconq.runs.folder import Run
from divconq.train import train
from divconq.training.optimizer import make_optimizer
from divconq.training.step import TrainingStep
from divconq.training.stop_signals import Stopped, StopSignals
from killed_runs import at_call
from test_resume import assert_same_runs, flags

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or sys.platform == "win32",
    reason="needs processes that talk by gloo",
)

STEPS, CLASSES, DIM = 20, 4, 8
LOSSES = {
    "margin": {"arguments": {"learn_beta": True}},
    "triplet": {},
    "soft_triplet": {},
    "npairs": {},
    "ProxyAnchorLoss": {},
    "ContrastiveLoss": {"miner": "MultiSimilarityMiner"},
}
PRELOADED = [
    "divconq.train",
    "pytorch_metric_learning.losses",
    "torch._dynamo",
    "faiss",
    "sklearn.metrics",
    "tyro",
]
BATCHES = {2: 12, 4: 10}  # by the number of ranks, so that shares are even once and once not


class Ranks:
    """Processes that run one function each, as if torchrun had started them."""

    def __init__(self, count, work, folder: Path):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        starter = multiprocessing.get_context(
            "forkserver"
        )  # what it has imported, they need not import again
        starter.set_forkserver_preload(PRELOADED)
        self.files = [folder / f"{r}.pt" for r in range(count)]
        self.said = [folder / f"{r}.txt" for r in range(count)]
        self.processes = [
            starter.Process(target=as_rank, args=(r, count, port, work, self.files[r], self.said[r]))
            for r in range(count)
        ]
        for process in self.processes:
            process.start()

    def join(self, *which):
        """Exit codes, all of them or of those ranks."""
        chosen = [self.processes[r] for r in which] or self.processes
        for process in chosen:
            process.join(60)
        codes = [process.exitcode for process in chosen]
        for process in chosen:
            process.kill()
        return codes

    def results(self):
        codes = self.join()
        assert not any(codes), [said.read_text() for said in self.said]
        return [torch.load(file) for file in self.files]


def as_rank(own, count, port, work, file, said):
    with said.open("w") as stderr:
        os.dup2(stderr.fileno(), 2)
    names = {
        "RANK": own,
        "LOCAL_RANK": own,
        "WORLD_SIZE": count,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    os.environ |= {name: str(value) for name, value in names.items()}
    torch.set_num_threads(1)
    torch.save(work(), file)


def together(work, patience=40.0):
    with joined(torch.device("cpu"), patience=patience):
        return work()


def run(count, work, folder, **settings):
    folder.mkdir(exist_ok=True)
    return Ranks(count, functools.partial(together, work, **settings), folder).results()


# --- training ---


def make(loss):
    """Network, objective over two masks that are no longer ones, optimiser.

    In double precision: Adam takes whole steps along gradients that are nothing but rounding.
    """
    torch.manual_seed(0)
    model = Embedder(SmallNet(), SmallNet.num_features, DIM, dropout=0.0).double()
    masks = Masks(DIM, k_max=4)
    masks.split_()
    nn.init.uniform_(masks.weight, 0.2, 1.5)
    objective = Objective(
        make_loss(loss, **LOSSES[loss], num_classes=CLASSES, dim=DIM), masks, overlap_weight=0.5
    ).double()
    adam = make_optimizer(model, masks, objective.loss, lr=1e-4, weight_decay=1e-3, mask_lr_scale=10.0)
    return model, objective, adam


def batch(step, count):
    """Images of a few classes: a pattern each, and noise."""
    patterns = torch.rand(CLASSES, 3, 16, 16, generator=torch.Generator().manual_seed(99))
    noise = torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(step))
    labels = torch.arange(count) % CLASSES
    return (patterns[labels] + 0.5 * noise).double(), labels, step % 2


def history(loss, count, ddp=False):
    """The loss of every step, the parameters in the end and, on rank 0, all gradients of every step."""
    model, objective, adam = make(loss)
    random.seed(1)
    network = nn.parallel.DistributedDataParallel(model) if ddp else model
    parameters = [*model.parameters(), *objective.parameters()]
    torch.manual_seed(1)
    losses, gradients = [], []
    for step in range(STEPS):
        x, labels, cluster = batch(step, count)
        with own_randomness():
            f = network(x[shard(count)])
        value = objective(gather(f, count), labels, cluster)
        adam.zero_grad()
        value.backward()
        if not ddp:
            average_gradients(parameters)
        losses.append(value.detach())
        if rank() == 0:
            gradients.append(flat(p.grad for p in parameters))
        adam.step()
    return torch.stack(losses), flat(parameters), gradients


def flat(tensors):
    return torch.cat([t.detach().flatten() for t in tensors])


def histories(count):
    return {loss: history(loss, count) for loss in LOSSES}


@pytest.fixture(scope="module", params=BATCHES)
def ranks(request):
    return request.param


@pytest.fixture(scope="module")
def alone(ranks):
    return histories(BATCHES[ranks])


@pytest.fixture(scope="module")
def shared(ranks, tmp_path_factory):
    return run(ranks, functools.partial(histories, BATCHES[ranks]), tmp_path_factory.mktemp("ranks"))


def assert_same(got, wanted):
    losses, parameters, gradients = wanted
    assert gradients[0].norm() > 1
    assert torch.allclose(got[0], losses, rtol=0, atol=1e-9)
    assert torch.allclose(got[1], parameters, rtol=0, atol=1e-9)
    largest = max(1.0, *(gradient.abs().max() for gradient in gradients))
    for one, other in zip(got[2], gradients, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-9 * largest)


@pytest.mark.parametrize("loss", LOSSES)
def test_ranks_train_as_one_process(alone, shared, loss):
    assert_same(shared[0][loss], alone[loss])


def test_the_wrapper_of_torch_averages_as_well(tmp_path):
    got = run(2, functools.partial(history, "npairs", 10, ddp=True), tmp_path)
    assert_same(got[0], history("npairs", 10))


@pytest.mark.parametrize("loss", LOSSES)
def test_all_ranks_hold_the_same_bits(shared, loss):
    for told in shared[1:]:
        assert torch.equal(told[loss][0], shared[0][loss][0])
        assert torch.equal(told[loss][1], shared[0][loss][1])


# --- the parts ---


def raised_by(function):
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def fail_on(which, kind=ValueError):
    if rank() == which:
        raise kind(f"rank {which} cannot")
    return rank()


class Unheard(Exception):  # noqa: N818
    pass


def parts():
    torch.manual_seed(rank())
    linear = nn.Linear(3, 3).to(memory_format=torch.channels_last)
    started_as = copy.deepcopy(linear.state_dict())
    synchronise(linear)
    torch.manual_seed(7)
    random.seed(7)
    own = []
    for _ in range(2):
        with own_randomness():
            own.append(torch.rand(3))
    return {
        "rank": (rank(), size()),
        "shards": [torch.arange(n)[shard(n)] for n in range(12)],
        "whole": [gather(torch.arange(2 * n).view(n, 2)[shard(n)], n) for n in range(12)],
        "wrong rows": raised_by(lambda: gather(torch.zeros(5), 8)),
        "started as": started_as["weight"],
        "synchronised": linear.weight.detach(),
        "own": torch.stack(own),
        "shared": torch.rand(3),
        "first": on_first(dict, k=torch.tensor([rank(), 5])),
        "first fails": raised_by(lambda: on_first(lambda: fail_on(0))),
        "first fails strangely": raised_by(lambda: on_first(lambda: fail_on(0, Unheard))),
        "every": on_every(lambda: fail_on(99)),
        "every fails": raised_by(lambda: on_every(lambda: fail_on(1))),
        "anywhere": (anywhere(rank() == 1), anywhere(False)),
        "batchnorm": raised_by(lambda: share_batchnorm(nn.BatchNorm2d(3), torch.device("cpu"))),
    }


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    return run(4, parts, tmp_path_factory.mktemp("parts"))


def test_every_rank_knows_its_place(told):
    assert [of["rank"] for of in told] == [(r, 4) for r in range(4)]


def test_shares_differ_by_one_and_come_back_in_order(told):
    for n in range(12):
        shares = [of["shards"][n] for of in told]
        assert torch.equal(torch.cat(shares), torch.arange(n))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        assert all(torch.equal(of["whole"][n], torch.arange(2 * n).view(n, 2)) for of in told)


def test_a_share_of_the_wrong_length_is_refused(told):
    assert told[2]["wrong rows"] == (
        "ValueError: rank 2 of 4 must give 2 of 8 rows, got 5; give the rows that shard(n) names"
    )


def test_all_get_the_weights_of_the_first(told):
    assert not torch.equal(told[0]["started as"], told[1]["started as"])
    assert all(torch.equal(of["synchronised"], told[0]["started as"]) for of in told)


def test_random_numbers_are_own_inside_and_shared_outside(told):
    own = torch.cat([of["own"] for of in told])
    assert len(own.unique(dim=0)) == 8  # 4 ranks, 2 steps
    torch.manual_seed(7)
    assert all(torch.equal(of["shared"], told[0]["shared"]) for of in told)
    assert torch.equal(told[0]["shared"], torch.rand(3))


def test_the_first_does_it_for_all(told):
    assert all(torch.equal(of["first"]["k"], torch.tensor([0, 5])) for of in told)


def test_errors_of_one_are_errors_of_all(told):
    assert {of["first fails"] for of in told} == {"ValueError: rank 0 cannot"}
    assert [of["first fails strangely"] for of in told] == (
        ["Unheard: rank 0 cannot"] + 3 * ["RuntimeError: Unheard: rank 0 cannot"]
    )
    assert [of["every"] for of in told] == [0, 1, 2, 3]
    assert {of["every fails"] for of in told} == {"ValueError: rank 1 cannot"}


def test_a_flag_of_one_is_seen_by_all(told):
    assert {of["anywhere"] for of in told} == {(True, False)}


def test_live_batchnorm_needs_gpus(told):
    assert all("--freeze-batchnorm" in of["batchnorm"] for of in told)


# --- alone ---


def test_alone_nothing_happens():
    x = torch.rand(5, 2)
    torch.manual_seed(0)
    with joined(), own_randomness():
        assert (rank(), size()) == (0, 1)
        assert gather(x, 7) is x
        inside = torch.rand(3)
    torch.manual_seed(0)
    assert torch.equal(inside, torch.rand(3))
    norm = nn.BatchNorm2d(3)
    assert share_batchnorm(norm, torch.device("cpu")) is norm
    assert raised_by(lambda: on_first(lambda: fail_on(0, Unheard))) == "Unheard: rank 0 cannot"


def test_alone_a_compiled_function_does_not_notice(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # what checks types cannot be compiled
    whole = torch.compile(lambda x: gather(x * 2, len(x)), backend="eager", fullgraph=True)
    assert torch.equal(whole(torch.ones(3)), torch.full((3,), 2.0))


# --- ranks that die ---


def talk(which, end):
    """Average gradients for ever; one rank ends in the middle of it."""
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    for step in range(10**9):
        if step == 50 and rank() == which:
            os.kill(os.getpid(), end)
        average_gradients([weight])


def talk_and_tell(which):
    return raised_by(functools.partial(together, functools.partial(talk, which, signal.SIGKILL)))


@pytest.mark.parametrize("which", [0, 2])
def test_a_killed_rank_ends_the_others_with_a_sentence(tmp_path, which):
    ranks = Ranks(3, functools.partial(talk_and_tell, which), tmp_path)
    assert ranks.join() == [-signal.SIGKILL if r == which else 0 for r in range(3)]
    for r in {0, 1, 2} - {which}:
        said = torch.load(ranks.files[r])
        assert said.startswith(f"ConnectionError: rank {r}: another process of this run has ended")
        assert "torchrun --max-restarts" in said


def test_a_rank_that_falls_silent_ends_the_others_with_a_sentence(tmp_path):
    """As if its machine had lost power: its connections stay open, and nothing comes any more."""
    work = functools.partial(together, functools.partial(talk, 1, signal.SIGSTOP), patience=3.0)
    ranks = Ranks(2, work, tmp_path)
    assert ranks.join(0) == [1]
    ranks.processes[1].kill()
    said = ranks.said[0].read_text()
    assert "rank 1 of 2 has given no sign of life for 3 seconds" in said
    assert "torchrun --max-restarts" in said


def test_ranks_that_start_again_are_not_misled_by_what_dead_ones_left():
    """Torchrun keeps its store when it restarts: what is in it is of no use to the new ranks."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store.set("attempt", "dead")
    for r in range(3):
        store.set(f"dead {r}", "dead too")
        store.set("answer to dead too", "dead")

    def agree(own):
        return _attempt_name(torch.distributed.TCPStore("127.0.0.1", store.port, is_master=False), own, 3)

    with ThreadPoolExecutor() as ranks:
        others = [ranks.submit(agree, 2), ranks.submit(agree, 1)]
        time.sleep(0.3)  # they find the old name first
        name = agree(0)
    assert name != "dead"
    assert [other.result() for other in others] == [name, name]


def slow():
    return on_first(lambda: time.sleep(4.0) or "done")


def test_a_slow_rank_is_not_dead(tmp_path):
    assert run(2, slow, tmp_path, patience=3.0) == ["done", "done"]


# --- runs ---


@pytest.fixture
def smooth(tiny):
    """A run in which rounding stays rounding: no large steps, no dropout, which is each rank's own."""
    return dataclasses.replace(tiny, lr=1e-5, mask_lr_scale=1.0, dropout=0.0, augmentation="geom+color")


def files_of(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.mark.parametrize(
    ("ranks", "change"),
    [
        (2, {"epochs": 3, "save_steps": 3}),
        (4, {"epochs": 2, "batch": 10, "val_classes": 3, "loss": "MultiSimilarityLoss", "cache": False}),
    ],
)
def test_a_run_of_several_processes_is_the_run_of_one(smooth, tmp_path, ranks, change):
    config = dataclasses.replace(smooth, **change)
    alone = train(config, tmp_path / "alone")
    told = run(ranks, functools.partial(train, config, tmp_path / "run"), tmp_path / "ranks")
    assert all(records == told[0] for records in told), "all are told what the first has written"
    assert files_of(tmp_path / "run") == files_of(tmp_path / "alone")
    for one, other in zip(told[0], alone, strict=True):
        assert one.keys() == other.keys()
        for name in one.keys() - {"seconds", "images_per_s"}:
            assert one[name] == pytest.approx(other[name], abs=1e-5 if name == "loss" else 1e-6), name
    for name in (f"divisions/epoch_{epoch:04d}.safetensors" for epoch in range(1, config.epochs)):
        one, other = (load_file(tmp_path / run / name) for run in ("run", "alone"))
        assert len(one["labels"].unique()) == 2
        assert torch.equal(one["labels"], other["labels"])
        assert torch.allclose(one["masks"], other["masks"], atol=1e-5)
    one, other = (load_file(tmp_path / run / "model.safetensors") for run in ("run", "alone"))
    assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in other)


def test_dropout_is_each_ranks_own_and_a_run_that_goes_on_draws_it_again(smooth, tmp_path):
    """Also by another number of processes: what is in a checkpoint does not depend on it."""
    config = dataclasses.replace(smooth, epochs=2, dropout=0.5)
    run(2, functools.partial(train, config, tmp_path / "whole"), tmp_path / "ranks")
    run(2, functools.partial(stopped, config, tmp_path / "run", after=6), tmp_path / "ranks")
    assert Run.open(tmp_path / "run").load()["step"] == 2
    run(2, functools.partial(train, config, tmp_path / "run", resume=True), tmp_path / "ranks")
    assert_same_runs(tmp_path / "whole", tmp_path / "run")
    train(dataclasses.replace(config, epochs=3), tmp_path / "run", resume=True)
    assert len(Run.open(tmp_path / "run").metrics()) == 3


def stopped(config, out, after):
    """A run that is told to stop, on its last rank, in the ``after``-th step; the steps made, and the exit code."""

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
    """The calls of a function from now on; ``tell`` gets the number of each, before it is made."""
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
    own = dataclasses.replace(config, data="nowhere") if rank() == 1 else config
    few = dataclasses.replace(config, batch=2)
    return [raised_by(functools.partial(train, one, out)) for one in (own, few)]


def test_what_one_rank_lacks_ends_all_in_its_words(smooth, tmp_path):
    told = run(3, functools.partial(refused, smooth, tmp_path / "run"), tmp_path / "ranks")
    for lacks, few in told:
        assert lacks.startswith("ValueError: no dataset is called 'nowhere'")
        assert few.startswith("ValueError: 3 processes share the images of a batch and of every split, got 2")
    assert not (tmp_path / "run").exists()


def train_and_die(config, out, which, owner, name, number):
    """Train with a rank that is killed at the ``number``-th call of a function."""
    if rank() == which:
        at_call(pkgutil.resolve_name(owner), name, number)
    train(config, out)


@pytest.mark.parametrize(
    ("which", "death"),
    [
        (1, ("divconq.training.step:TrainingStep", "__call__", 6)),
        (0, ("divconq.train", "divide", 1)),
        (0, ("divconq.runs.checkpoints", "save", 1)),
    ],
)
def test_a_rank_killed_in_a_run_ends_the_others_with_a_sentence(smooth, tmp_path, which, death):
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
    """By gloo, which unlike NCCL lets two processes share a GPU; the network must be captured."""
    torch.distributed.init_process_group("gloo")
    warnings.filterwarnings("error", message=".*cannot be (compiled or )?captured")
    with joined(torch.device("cuda")):
        return train(config, out)


@pytest.mark.gpu
def test_two_processes_on_a_gpu_train_as_one(tmp_path):
    config = dataclasses.replace(
        preset("demo"),
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


# --- the command ---

DIES_ONCE = """
import os, sys
from divconq.cli import main
from divconq.training.step import TrainingStep
from killed_runs import at_call

if (os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]) == ("0", "1"):
    at_call(TrainingStep, "__call__", 6)
main(sys.argv[1:])
"""


def launched(*command, **settings):
    """What ``torchrun`` starts, two processes."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *command]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*map(str, words)], env=environment, text=True, **pipes)


def arguments(config, out):
    return ["train", "--out", str(out), "--save-steps", "2", "--dropout", "0.5", *flags(config)]


def test_torchrun_starts_a_run_again_that_ends_as_one_that_was_not_killed(tiny, tmp_path):
    config = dataclasses.replace(tiny, epochs=2)
    (tmp_path / "dies_once.py").write_text(DIES_ONCE)
    process = launched("--max-restarts", "1", tmp_path / "dies_once.py", *arguments(config, tmp_path / "run"))
    told, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert said.count("training on") == 2, "the first of each start says so"
    assert "rank 0: another process of this run has ended" in said
    assert told.count("last (epoch 2)") == 1, "one table, of the first"
    ranks = Ranks(2, functools.partial(main, arguments(config, tmp_path / "whole")), tmp_path)
    assert ranks.join() == [0, 0], [said.read_text() for said in ranks.said]
    assert_same_runs(tmp_path / "whole", tmp_path / "run")


@pytest.mark.slow
def test_a_signal_to_torchrun_saves_and_says_how_to_go_on(tiny, tmp_path):
    out = tmp_path / "run"
    process = launched("-m", "divconq", *arguments(dataclasses.replace(tiny, epochs=10_000), out))
    while not (out / "last.pt").exists() and process.poll() is None:
        time.sleep(0.1)
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    assert said.count(f"stopped; continue with: divconq train --resume {out}") == 1
    epochs = Run.open(out).load()["epoch"] + 1
    resumed = launched("-m", "divconq", "train", "--resume", out, "--epochs", epochs)
    resumed.communicate(timeout=120)
    assert resumed.returncode == 0
    assert len(Run.open(out).metrics()) == epochs


def example(*words):
    """What ``examples/own_loop.py`` prints, with a small part of its data."""
    from divconq.data.sources import demo

    demo.IMAGES, sys.argv = 2, ["own_loop.py", *words]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    return printed.getvalue()


EXAMPLE = Path(__file__).parents[2] / "examples" / "own_loop.py"
WORDS = ("--epochs", "4", "--lr", "1e-4")


def test_a_loop_of_your_own_prints_the_same(tmp_path):
    (alone,) = Ranks(1, functools.partial(example, *WORDS), tmp_path).results()
    assert len(alone.splitlines()) == 4
    assert Ranks(2, functools.partial(example, *WORDS), tmp_path).results() == [alone, ""]


@pytest.mark.slow
def test_the_example_under_torchrun_prints_the_same():
    words = ["--epochs", "1", "--lr", "1e-5"]  # in which rounding stays rounding
    alone = subprocess.run([sys.executable, EXAMPLE, *words], capture_output=True, text=True, check=True)
    told, said = launched(EXAMPLE, *words).communicate(timeout=600)
    assert told == alone.stdout, said
