"""How long work takes, on a device that may still be busy when Python goes on."""

import time
from collections.abc import Callable
from statistics import median
from typing import TypeVar

import torch

Result = TypeVar("Result")

LONG = 20.0  # seconds; what takes longer is done once, warm-up and all


def timed(work: Callable[[], Result], device: torch.device) -> tuple[float, Result]:
    """Seconds until the device has done the work, and what came out.

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
    """The median over ``rounds`` after one to warm up, and what came out; long work has fewer rounds.

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
