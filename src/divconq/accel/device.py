"""The device, its precision and the number of threads."""

import os
import sys

import torch


def threads(workers: int) -> int:
    """Return the number of threads: ``workers``, or if that is 0, the cores divided by the local processes.

    >>> threads(3), threads(0) >= 1
    (3, True)
    """
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return workers or max(1, cpus() // processes)


def cpus() -> int:
    """Return the number of processor cores that this process may use.

    >>> cpus() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def pick_device(name: str) -> torch.device:
    """Return the device to train on. ``auto`` is a GPU if there is one.

    >>> pick_device("cpu")
    device(type='cpu')
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "device is cuda, but torch finds no GPU here; use --device cpu, or install a CUDA build of torch"
        )
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")


def uses_bf16(precision: str, device: torch.device) -> bool:
    """Return whether the network runs in bf16 mixed precision. ``auto`` uses it on a GPU that supports it.

    >>> uses_bf16("auto", torch.device("cpu"))
    False
    """
    supported = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return precision == "bf16" or (precision == "auto" and supported)
