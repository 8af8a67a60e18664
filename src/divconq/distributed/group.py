"""Start and leave the process group; rank and number of processes."""

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from divconq.distributed.heartbeat import REMEDY, Heartbeat, stores

COLLECTIVE_TIMEOUT = timedelta(hours=1)  # longest wait for the work of one rank
HEARTBEAT_TIMEOUT = 40.0  # seconds without a heartbeat until a rank counts as dead


def rank() -> int:
    """Return the number of this process, from 0 to ``size() - 1``.

    >>> rank()
    0
    """
    return dist.get_rank() if _initialized() else 0


def size() -> int:
    """Return the number of processes that train together.

    >>> size()
    1
    """
    return dist.get_world_size() if _initialized() else 1


def _initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


@contextmanager
def process_group(
    device: torch.device | None = None, *, heartbeat_timeout: float = HEARTBEAT_TIMEOUT
) -> Iterator[None]:
    """Join the process group of ``torchrun`` inside the block. Without ``torchrun``, do nothing.

    ``device`` is the device to train on, by default a GPU if there is one; each process of a machine uses its own
    GPU. If a rank sends no heartbeat for ``heartbeat_timeout`` seconds, the others exit with an error message.

    >>> with process_group():
    ...     size()
    1
    """
    if _initialized() or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    on_gpu = torch.cuda.is_available() if device is None else device.type == "cuda"
    if on_gpu:
        _select_gpu()
    with connection_errors():
        store, own, count = next(stores.rendezvous("env://"))
        attempt = _attempt_name(store, own, count)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            store=stores.PrefixStore(attempt, store),
            rank=own,
            world_size=count,
            timeout=COLLECTIVE_TIMEOUT,
        )
        heartbeat = Heartbeat(own, count, attempt, heartbeat_timeout)
    try:
        with connection_errors():
            heartbeat.start()
        wait_for_all()  # every rank has sent its first heartbeat
        yield
        wait_for_all()  # no rank leaves while another still needs it
    finally:
        dist.destroy_process_group()
        heartbeat.stop()


def wait_for_all() -> None:
    """Wait until every rank has called this function.

    >>> wait_for_all()
    """
    if size() == 1:
        return
    with connection_errors():
        dist.all_reduce(torch.tensor(0))


@contextmanager
def connection_errors() -> Iterator[None]:
    """Convert communication errors of torch into a ``ConnectionError`` that says what to do."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).splitlines()[0].split("] ", 1)[-1].split(". ")[0]
        raise ConnectionError(
            f"rank {os.environ.get('RANK', '?')}: another process of this run has ended or cannot be reached "
            f"({reason}); {REMEDY}"
        ) from error


def _attempt_name(store: Any, own: int, count: int) -> str:  # noqa: ANN401
    """Return a name for this start of the process group, the same on all living ranks.

    ``torchrun`` keeps its store when it restarts, so the store may hold keys of ranks that died. Rank 0 draws a
    name and answers each rank that replies to it.
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


def _select_gpu() -> None:
    """Make the GPU of this process the current CUDA device."""
    own, available = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", own + 1))
    if processes > available:
        raise ValueError(
            f"every process needs its own GPU, got {processes} processes for {available} GPUs on this machine; "
            f"start torchrun with --nproc-per-node {available}, or train with --device cpu"
        )
    torch.cuda.set_device(own)
