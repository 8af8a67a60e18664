"""The same work on many files.

Threads wait for each other, for Python's lock; processes do not, where they can be forked.
"""

import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

Item = TypeVar("Item")
Result = TypeVar("Result")

WORTH_PROCESSES = 256  # items; to start processes takes as long as to decode some images
TOGETHER = 16  # items that a process takes at once
AHEAD = 1024  # items that wait for a thread; all of them are done before an exception gets through

_waiting: ContextVar[list[Callable[[], object]]] = ContextVar("waiting")


@contextmanager
def meanwhile(*work: Callable[[], object]) -> Iterator[None]:
    """Within this, one of ``work`` after the other is done by this process while it waits for processes.

    Each has a thread that begins when the processes are forked, and ends before any others are. What is still
    waiting at the end is left undone, and an exception is dropped: work that others can do later themselves.

    >>> with meanwhile(lambda: print("never, for two items")):
    ...     list(work_on(str.upper, ["a", "b"], workers=2))
    ['A', 'B']
    """
    token = _waiting.set(list(work))
    try:
        yield
    finally:
        _waiting.reset(token)


def work_on(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> Iterator[Result]:
    """What ``work`` gives for each item, in order, as it comes; ``workers`` are at it.

    Work that is done in another process changes nothing here: what counts is its result, or a file that it writes.

    >>> list(work_on(str.upper, ["a", "b"], workers=2))
    ['A', 'B']
    """
    if workers > 1 and len(items) >= WORTH_PROCESSES and _may_fork():
        loader = DataLoader(
            _Work(work, items),
            batch_size=TOGETHER,
            num_workers=workers,
            collate_fn=list,
            multiprocessing_context="fork",
            generator=torch.Generator(),  # not the default one, which others draw from
        )
        batches = iter(loader)  # forks
        with ThreadPoolExecutor(1) as beside:
            if waiting := _waiting.get([]):
                beside.submit(waiting.pop(0))
            for results in batches:
                for result in results:
                    if isinstance(result, OSError):
                        raise result
                    yield result
    else:
        with ThreadPoolExecutor(workers) as pool:
            for first in range(0, len(items), AHEAD):
                yield from pool.map(work, items[first : first + AHEAD])


class _Work(Dataset[Result | OSError], Generic[Item, Result]):
    """The work, as DataLoader wants it. An OSError is a result, since DataLoader would lose its number."""

    def __init__(self, work: Callable[[Item], Result], items: Sequence[Item]) -> None:
        self.work, self.items = work, items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> Result | OSError:
        try:
            return self.work(self.items[i])
        except OSError as error:
            return error


def _may_fork() -> bool:
    """Whether processes can be forked here; a daemonic one may have none of its own."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon
