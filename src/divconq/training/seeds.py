"""The global random generators, which dropout, losses and miners draw from: seeded, kept, and set back."""

import random
from typing import Any

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Seed torch on every device, numpy and Python.

    >>> seed_all(3); first = torch.rand(1), random.random(), np.random.rand()
    >>> seed_all(3); first == (torch.rand(1), random.random(), np.random.rand())
    True
    """
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def generator_states(device: torch.device) -> dict[str, Any]:
    """Where the generators are, in a form that is loaded without executing anything.

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
    """Set the generators back to where they were; one of a GPU only where there is one now."""
    torch.set_rng_state(states["torch"])
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    random.setstate(states["python"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
