"""The types of the entries of a checkpoint. A file with a right checksum may still hold wrong ones."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from divconq.checks import shown

ALWAYS = ("epoch", "model")  # what every reader of a checkpoint needs


def check_types(state: Mapping[str, Any]) -> None:
    """Raise ValueError if an entry of a checkpoint has a wrong type. Entries may be missing.

    >>> check_types({"epoch": "3"})
    Traceback (most recent call last):
    ValueError: its epoch must be a whole number of at least 0, got '3'
    """
    for name, (is_right, wanted) in ENTRIES.items():
        if name in state and not is_right(state[name]):
            raise ValueError(f"its {name} must be {wanted}, got {shown(state[name])}")
    if "losses" in state and "step" in state and len(state["losses"]) != state["step"]:
        raise ValueError(f"it has {len(state['losses'])} losses of {state['step']} steps")


def check_complete(state: Mapping[str, Any]) -> None:
    """Raise ValueError if a checkpoint lacks the epoch, the network, or the masks and clusters.

    >>> check_complete({"epoch": 3})
    Traceback (most recent call last):
    ValueError: it has no model
    """
    divided = ("divide_and_conquer",) if "divide_and_conquer" in state else ("masks", "partition")
    for name in (*ALWAYS, *divided):
        if name not in state:
            raise ValueError(f"it has no {name}")


def load_weights(module: nn.Module, state: Mapping[str, Any]) -> None:
    """Load a state into a module. Unlike torch, refuse a tensor of another type, such as whole numbers for weights.

    >>> load_weights(nn.Linear(1, 1), {"weight": torch.zeros(1, 1), "bias": torch.zeros(1, dtype=torch.int64)})
    Traceback (most recent call last):
    ValueError: bias must be of torch.float32, got torch.int64
    """
    for name, own in module.state_dict().items():
        given = state.get(name)
        if isinstance(own, Tensor) and isinstance(given, Tensor) and own.dtype != given.dtype:
            raise ValueError(f"{name} must be of {own.dtype}, got {given.dtype}")
    module.load_state_dict(state)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and _is_number(value) and 0 <= value < math.inf


def _is_table(value: object, is_right: Callable[[object], bool]) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) and is_right(value[key]) for key in value)


def _are_tensors(value: object) -> bool:
    """Return whether a value is the state of a module: tensors, and extra state of any type."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        return False
    return all(isinstance(item, Tensor) or key.endswith("_extra_state") for key, item in value.items())


def _are_clusters(value: object) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.int64 and value.ndim == 1


def _are_losses(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim == 1


def _are_masks(value: object, prefix: str = "") -> bool:
    if not _are_tensors(value) or not isinstance(value, dict):
        return False
    weight, count = value.get(f"{prefix}weight"), value.get(f"{prefix}count")
    if not isinstance(weight, Tensor) or not isinstance(count, Tensor):
        return False
    shaped = weight.ndim == 2 and weight.is_floating_point() and count.ndim == 0
    return shaped and count.dtype == torch.int64 and 1 <= int(count) <= len(weight)


def _are_averages(value: object) -> bool:
    """Return whether a value is a table of tensors, in which the averages of masks are a matrix."""
    if not _are_tensors(value) or not isinstance(value, dict):
        return False
    masks = [average for name, average in value.items() if name == "masks.weight"]
    return all(average.ndim == 2 and average.is_floating_point() for average in masks)


def _is_algorithm(value: object) -> bool:
    """Return whether a value is the state of ``DivideAndConquer``: masks, loss, partition and epoch."""
    if not _are_masks(value, "objective.masks.") or not isinstance(value, dict):
        return False
    extra = value.get("_extra_state")
    if not isinstance(extra, dict) or not {"clusters", "k", "epoch", "divided_at"} <= extra.keys():
        return False
    counts = [extra["k"], extra["epoch"], extra["divided_at"] or 0]
    return _are_clusters(extra["clusters"]) and all(map(_is_count, counts))


def _is_optimizer(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    moments, groups = value.get("state", {}), value.get("param_groups", [])
    if not isinstance(moments, dict) or not isinstance(groups, list):
        return False
    if not all(isinstance(item, dict) for item in (*moments.values(), *groups)):
        return False
    numbers = [group.get("params") for group in groups]
    return all(isinstance(some, list) and all(map(_is_count, some)) for some in numbers)


COUNT = (_is_count, "a whole number of at least 0")
TENSORS = (_are_tensors, "a table of tensors")
ENTRIES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "epoch": COUNT,
    "step": COUNT,
    "k": COUNT,
    "best": (_is_number, "a number"),
    "best_k": COUNT,
    "losses": (_are_losses, "a row of numbers"),
    "seconds": (lambda value: _is_table(value, _is_time), "a table of seconds"),
    "generators": (lambda value: _is_table(value, lambda _: True), "a table of random states"),
    "data": (lambda value: isinstance(value, str), "a string"),
    "model": TENSORS,
    "loss": TENSORS,
    "averages": (_are_averages, "a table of averages"),
    "masks": (_are_masks, "the masks and their count"),
    "partition": (_are_clusters, "a row of whole numbers"),
    "divide_and_conquer": (_is_algorithm, "the state of DivideAndConquer"),
    "optimizer": (_is_optimizer, "the state of an optimiser"),
}
