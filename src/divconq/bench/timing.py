"""Time work on a device, including work that runs asynchronously."""

import time
from collections.abc import Callable
from statistics import median
from typing import TypeVar

import torch

Result = TypeVar("Result")

LONG = 20.0  # seconds; longer work runs once, without a warm-up


def timed(work: Callable[[], Result], device: torch.device) -> tuple[float, Result]:
    """Return the seconds until the device has finished, and the result.

    >>> timed(lambda: 7, torch.device("cpu"))[1]
    7
    """
    _wait(device)
    start = time.perf_counter()
    result = work()
    _wait(device)
    return time.perf_counter() - start, result


def median_seconds(
    work: Callable[[], Result], device: torch.device, *, rounds: int = 3
) -> tuple[float, Result]:
    """Return the median seconds of ``rounds`` after one warm-up, and the result; long work has fewer rounds.

    >>> median_seconds(lambda: 7, torch.device("cpu"))[1]
    7
    """
    first, result = timed(work, device)
    if first > LONG:
        return first, result
    seconds: list[float] = []
    while len(seconds) < rounds and sum(seconds) < LONG:
        seconds.append(timed(work, device)[0])
    return median(seconds), result


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
