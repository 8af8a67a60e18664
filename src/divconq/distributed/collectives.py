"""Several processes that train as one, started by ``torchrun``; with one process nothing here does anything.

Every rank embeds its share of a batch, ``gather`` puts the embeddings of all shares together, and every rank
computes the same loss of the whole batch. ``gather`` hands back the gradient of a rank's own rows, ``size()``
times: when the gradients of all ranks are then averaged (``average_gradients``, or torch's
DistributedDataParallel), those of the network add up to the gradient of the whole batch, and those of masks and
losses, which are the same on every rank, stay as they are.
"""

import functools
import os
import random
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor, nn

from divconq.distributed.heartbeat import REMEDY, SignsOfLife, stores

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

LONGEST_WORK = timedelta(hours=1)  # that one rank may do while the others wait for it
PATIENCE = 40.0  # seconds in which every rank must give a sign of life
SENTENCES = (ValueError, OSError, FloatingPointError)  # errors that are one sentence for the user


def rank() -> int:
    """Which of the processes this is.

    >>> rank()
    0
    """
    return dist.get_rank() if _together() else 0


def size() -> int:
    """How many processes train together.

    >>> size()
    1
    """
    return dist.get_world_size() if _together() else 1


def _together() -> bool:
    return dist.is_available() and dist.is_initialized()


@contextmanager
def joined(device: torch.device | None = None, *, patience: float = PATIENCE) -> Iterator[None]:
    """Train with the other processes of a ``torchrun`` inside the block; alone, if there are none.

    ``device`` is where to compute, by default a GPU if there is one: each process of a machine takes its own.
    If another rank dies, this one ends within ``patience`` seconds and a few, and says so.

    >>> with joined():
    ...     size()
    1
    """
    if _together() or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    on_gpu = torch.cuda.is_available() if device is None else device.type == "cuda"
    if on_gpu:
        _take_gpu()
    with _reaching_the_others():
        store, own, count = next(stores.rendezvous("env://"))
        attempt = _attempt_name(store, own, count)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            store=stores.PrefixStore(attempt, store),
            rank=own,
            world_size=count,
            timeout=LONGEST_WORK,
        )
        life = SignsOfLife(own, count, attempt, patience)
    try:
        on_every(life.start)
        yield
        wait_for_all()  # nobody leaves while another still talks
    finally:
        dist.destroy_process_group()
        life.end()


def _attempt_name(store: Any, own: int, count: int) -> str:  # noqa: ANN401
    """A name that all ranks agree on, and only those that are alive: rank 0 answers each of them.

    After a restart the store may still hold what the ranks that died have left there.
    """
    mine = secrets.token_hex(8)
    if own == 0:
        store.set("attempt", mine)
        for other in range(1, count):
            store.set(f"answer to {store.get(f'{mine} {other}').decode()}", mine)
        return mine
    while not store.check([f"answer to {mine}"]):
        named = store.get("attempt").decode()
        store.set(f"{named} {own}", mine)
        time.sleep(0.05)
    attempt: str = store.get(f"answer to {mine}").decode()
    return attempt


def _take_gpu() -> None:
    """Make the GPU of this process the one that is meant by ``cuda``."""
    own, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", own + 1))
    if processes > there:
        raise ValueError(
            f"every process needs a GPU of its own, and this machine has {there} for {processes} processes; "
            f"start torchrun with --nproc-per-node {there}, or train with --device cpu"
        )
    torch.cuda.set_device(own)


def shard(n: int) -> slice:
    """Which of ``n`` things in a row are this rank's; shares differ by at most one.

    >>> list(range(5))[shard(5)]
    [0, 1, 2, 3, 4]
    """
    return _shards(n, size())[rank()]


def _shards(n: int, ranks: int) -> list[slice]:
    """The shares of all ranks.

    >>> _shards(10, 4)
    [slice(0, 3, None), slice(3, 6, None), slice(6, 8, None), slice(8, 10, None)]
    """
    least, more = divmod(n, ranks)
    ends = [least * (r + 1) + min(r + 1, more) for r in range(ranks)]
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def gather(x: Shaped[Tensor, " m *rest"], n: int) -> Shaped[Tensor, " n *rest"]:
    """All ``n`` rows, of which every rank has its ``shard(n)``: in their order, on every rank, with gradients.

    If L is the same on every rank, the gradient that arrives at ``x`` is ``size()`` times dL/dx.

    >>> gather(torch.tensor([[1.0], [2.0]]), 2).tolist()
    [[1.0], [2.0]]
    """
    if size() == 1:
        return x
    mine = shard(n)
    if len(x) != mine.stop - mine.start:
        raise ValueError(
            f"rank {rank()} of {size()} must give {mine.stop - mine.start} of {n} rows, got {len(x)}; "
            "give the rows that shard(n) names"
        )
    rows: Tensor = _Gather.apply(x, n)
    return rows


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, n: int) -> Tensor:  # noqa: ANN401
        ctx.n = n
        shares = _shards(n, size())
        longest = shares[0].stop
        padded = torch.cat([x, x.new_zeros(longest - len(x), *x.shape[1:])]) if len(x) < longest else x
        parts = [torch.empty_like(padded, memory_format=torch.contiguous_format) for _ in shares]
        with _reaching_the_others():
            dist.all_gather(parts, padded.contiguous())
        return torch.cat([part[: s.stop - s.start] for part, s in zip(parts, shares, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        return size() * gradient[shard(ctx.n)], None


def average_gradients(parameters: Iterable[Tensor]) -> None:
    """Replace every gradient by its mean over the ranks; which parameters have one must be the same on all.

    >>> weight = nn.Parameter(torch.ones(2)); weight.sum().backward()
    >>> average_gradients([weight]); weight.grad
    tensor([1., 1.])
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if size() == 1 or not gradients:
        return
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    with _reaching_the_others():
        dist.all_reduce(flat)
    flat /= size()
    for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))


@torch.no_grad()
def synchronise(*modules: nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0.

    >>> synchronise(nn.Linear(2, 2))
    """
    if size() == 1:
        return
    for value in (v for module in modules for v in (*module.parameters(), *module.buffers())):
        dense = value.contiguous()
        with _reaching_the_others():
            dist.broadcast(dense, src=0)
        value.copy_(dense)


def on_first(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """What ``function`` gives on rank 0, which alone calls it; what it raises there, all raise.

    >>> on_first(max, 2, 3)
    3
    """
    if size() == 1:
        return function(*args, **kwargs)
    result, error = _attempt(function, *args, **kwargs) if rank() == 0 else (None, None)
    sent: list[Any] = [(result, error and _in_words(error))]
    with _reaching_the_others():
        dist.broadcast_object_list(sent, src=0)
    _raise_together(error, [sent[0][1]])
    given: Result = sent[0][0]
    return given


def on_every(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """What ``function`` gives here; if it fails on any rank, all raise, after all have called it.

    ``function`` itself may not wait for other ranks.

    >>> on_every(max, 2, 3)
    3
    """
    if size() == 1:
        return function(*args, **kwargs)
    result, error = _attempt(function, *args, **kwargs)
    failed: list[Any] = [None] * size()
    with _reaching_the_others():
        dist.all_gather_object(failed, error and _in_words(error))
    _raise_together(error, failed)
    return result  # type: ignore[return-value]


def first_only(function: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """The function on rank 0; the others pass over it, and wait for nothing.

    >>> first_only(lambda: print("written"))()
    written
    """

    @functools.wraps(function)
    def passed_over(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        if rank() == 0:
            function(*args, **kwargs)

    return passed_over


def anywhere(flag: bool) -> bool:
    """Whether ``flag`` is set on any rank; all must ask.

    >>> anywhere(False)
    False
    """
    if size() == 1:
        return flag
    raised = torch.tensor(int(flag))
    with _reaching_the_others():
        dist.all_reduce(raised, dist.ReduceOp.MAX)
    return bool(raised)


def wait_for_all() -> None:
    """Go on when all ranks are here.

    >>> wait_for_all()
    """
    anywhere(False)


@contextmanager
def own_randomness() -> Iterator[None]:
    """Torch's random numbers inside the block are this rank's own; those after it are as if it had not been.

    So images get different dropout on every rank, and a loss that draws draws the same on all. What is drawn
    inside follows from Python's generator, which the ranks share as well. A process that is alone goes on with
    its numbers.

    >>> with own_randomness():
    ...     x = torch.rand(3)
    """
    if size() == 1:
        yield
        return
    seeds = np.random.SeedSequence([random.getrandbits(64), rank()])
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    with torch.random.fork_rng([torch.cuda.current_device()] if on_gpu else []):
        torch.manual_seed(int(seeds.generate_state(1, np.uint64)[0]))
        yield


def share_batchnorm(model: nn.Module, device: torch.device) -> nn.Module:
    """The model with BatchNorm over the images of all ranks; only GPUs can do that.

    >>> share_batchnorm(nn.Linear(2, 2), torch.device("cpu"))
    Linear(in_features=2, out_features=2, bias=True)
    """
    has_any = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
    if size() == 1 or not has_any:
        return model
    if device.type != "cuda":
        raise ValueError(
            f"BatchNorm that learns its statistics over {size()} processes needs GPUs, got {device.type}; "
            "freeze it with --freeze-batchnorm, or train in one process"
        )
    from timm.layers.norm_act import convert_sync_batchnorm

    shared: nn.Module = convert_sync_batchnorm(model)  # torch's own would lose activations that are inside
    return shared


@contextmanager
def _reaching_the_others() -> Iterator[None]:
    """An error in talking to other ranks as a sentence."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).splitlines()[0].split("] ", 1)[-1].split(". ")[0]
        raise ConnectionError(
            f"rank {os.environ.get('RANK', '?')}: another process of this run has ended or cannot be reached "
            f"({reason}); {REMEDY}"
        ) from error


def _attempt(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> tuple[Result | None, Exception | None]:
    try:
        return function(*args, **kwargs), None
    except Exception as error:
        return None, error


def _in_words(error: Exception) -> tuple[type[Exception], str]:
    """An error as what can be sent to other processes, which may not know its class."""
    kind = next((kind for kind in SENTENCES if isinstance(error, kind)), None)
    return (kind, str(error)) if kind else (RuntimeError, f"{type(error).__name__}: {error}")


def _raise_together(own: Exception | None, failed: list[tuple[type[Exception], str] | None]) -> None:
    if own is not None:
        raise own
    for failure in failed:
        if failure is not None:
            raise failure[0](failure[1])
