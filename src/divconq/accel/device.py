"""Where a run computes, and in which precision."""

import os
import sys

import torch


def threads(workers: int) -> int:
    """How many threads to use: as many as asked for; 0 is one for each core it may use, shared by ``torchrun``'s.

    >>> threads(3), threads(0) >= 1
    (3, True)
    """
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return workers or max(1, cpus() // processes)


def cpus() -> int:
    """How many processor cores this process may use.

    >>> cpus() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def pick_device(name: str) -> torch.device:
    """The device to train on; ``auto`` is the GPU if there is one.

    >>> pick_device("cpu")
    device(type='cpu')
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "device is cuda, but torch finds no GPU here; use --device cpu, or install a CUDA build of torch"
        )
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")


def uses_bf16(precision: str, device: torch.device) -> bool:
    """Whether the network runs in mixed precision; ``auto`` does so on a GPU that has bf16.

    >>> uses_bf16("auto", torch.device("cpu"))
    False
    """
    has_it = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return precision == "bf16" or (precision == "auto" and has_it)
