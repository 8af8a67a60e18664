"""Seed, save and restore the global random generators, which dropout, losses and miners use."""

import random
from typing import Any

import numpy as np
import torch


def epoch_seed(seed: int, epoch: int) -> int:
    """Return the random seed of an epoch. A resumed run draws the same numbers.

    >>> epoch_seed(0, 3), epoch_seed(1, 3)
    (3, 1000006)
    """
    return (seed * 1_000_003 + epoch) % 2**63


def seed_all(seed: int) -> None:
    """Seed torch on all devices, numpy and Python.

    >>> seed_all(3); first = torch.rand(1), random.random(), np.random.rand()
    >>> seed_all(3); first == (torch.rand(1), random.random(), np.random.rand())
    True
    """
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def generator_states(device: torch.device) -> dict[str, Any]:
    """Return the states of all generators as tensors and plain values, which load without executing code.

    >>> cpu = torch.device("cpu")
    >>> states = generator_states(cpu); first = torch.rand(1), random.random(), np.random.rand()
    >>> set_generator_states(states, cpu); first == (torch.rand(1), random.random(), np.random.rand())
    True
    """
    name, keys, *rest = np.random.get_state(legacy=True)
    states = {
        "torch": torch.get_rng_state(),
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        "python": random.getstate(),
    }
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_generator_states(states: dict[str, Any], device: torch.device) -> None:
    """Restore the states of all generators, and of the GPU generator if ``device`` is a GPU."""
    torch.set_rng_state(states["torch"])
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    random.setstate(states["python"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def check_generator_states(states: dict[str, Any], device: torch.device) -> None:
    """Raise ValueError if these are not states of the generators. The generators stay as they are.

    >>> check_generator_states({"torch": torch.zeros(3)}, torch.device("cpu"))
    Traceback (most recent call last):
    ValueError: it holds no states of the random generators
    """
    if not states:  # between two epochs
        return
    before = generator_states(device)
    try:
        set_generator_states(states, device)
    except Exception as error:  # each generator refuses in its own way
        raise ValueError("it holds no states of the random generators") from error
    finally:
        set_generator_states(before, device)
