"""Parallel map over many items: in forked processes where possible, else in threads.

Processes do not share Python's interpreter lock, so they decode images faster than threads.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from typing import Any, TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

MIN_FOR_PROCESSES = 256  # items; for fewer, starting processes costs more than it saves
CHUNK = 16  # items sent to a process at once
THREAD_CHUNK = 64  # small items per thread task, because submitting an item costs more than its work
AHEAD = 1024  # items submitted to threads at once; all of them finish before an exception is raised

_background: ContextVar[list[Callable[[], object]]] = ContextVar("background")
_job: tuple[Callable[[Any], Any], Sequence[Any]]  # work and items, set in each worker process


@contextmanager
def background_work(*tasks: Callable[[], object]) -> Iterator[None]:
    """Run ``tasks`` in this process while ``parallel_map`` waits for worker processes.

    Each call of ``parallel_map`` that starts processes runs one task in a thread. The thread starts after the
    processes are forked and ends before the call returns. Tasks without such a call do not run.
    Exceptions of tasks are ignored, because a task only does later work early.

    >>> with background_work(lambda: print("not run: two items need no processes")):
    ...     list(parallel_map(str.upper, ["a", "b"], workers=2))
    ['A', 'B']
    """
    token = _background.set(list(tasks))
    try:
        yield
    finally:
        _background.reset(token)


def parallel_map(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> Iterator[Result]:
    """Yield ``work(item)`` for each item, in order, computed by ``workers`` processes or threads.

    ``work`` may run in another process: use its result or the files that it writes, not its side effects.

    >>> list(parallel_map(str.upper, ["a", "b"], workers=2))
    ['A', 'B']
    """
    if workers > 1 and len(items) >= MIN_FOR_PROCESSES and _can_fork():
        yield from _map_in_processes(work, items, workers)
        return
    with ThreadPoolExecutor(workers) as pool:
        for first in range(0, len(items), AHEAD):
            yield from pool.map(work, items[first : first + AHEAD])


def map_in_threads(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> list[Result]:
    """Return ``work(item)`` for each item, in order. Use it for work that takes microseconds.

    >>> map_in_threads(str, [1, 2], workers=2)
    ['1', '2']
    """
    chunks = [items[first : first + THREAD_CHUNK] for first in range(0, len(items), THREAD_CHUNK)]
    with ThreadPoolExecutor(workers) as pool:
        done = pool.map(lambda chunk: [work(item) for item in chunk], chunks)
        return [result for results in done for result in results]


def _map_in_processes(
    work: Callable[[Item], Result], items: Sequence[Item], workers: int
) -> Iterator[Result]:
    fork = multiprocessing.get_context("fork")  # shares ``work`` and ``items`` without pickling
    with (
        ProcessPoolExecutor(workers, fork, _start_worker, (work, items)) as pool,
        ThreadPoolExecutor(1) as background,
    ):
        chunks = (pool.submit(_do_chunk, first, CHUNK) for first in range(0, len(items), CHUNK))
        ahead = deque(islice(chunks, 2 * workers))  # the first submission forks all processes
        if tasks := _background.get([]):
            background.submit(tasks.pop(0))
        while ahead:
            results = ahead.popleft().result()
            ahead.extend(islice(chunks, 1))
            yield from results


def _start_worker(work: Callable[[Item], Result], items: Sequence[Item]) -> None:
    global _job
    _job = work, items
    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the handler of the parent, which raises an exception
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """Exit when the parent is killed, because a surviving worker would keep the parent's locks."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _do_chunk(first: int, count: int) -> list[Any]:
    work, items = _job
    return [work(item) for item in items[first : first + count]]


def _can_fork() -> bool:
    """Return whether this process can fork others; a daemonic process cannot."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon
