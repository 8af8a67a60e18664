"""Check that all ranks work with the same settings and the same data."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

from divconq.distributed.group import connection_errors, size


def check_equal(values: Mapping[str, object], remedy: str) -> None:
    """Raise the same ValueError on every rank if a value differs between ranks. Every rank must call this function.

    >>> check_equal({"lr": 1e-5}, "start all ranks with the same command")
    """
    if size() == 1:
        return
    ranks: list[Any] = [None] * size()
    with connection_errors():
        dist.all_gather_object(ranks, dict(values))
    compare(ranks, remedy)


def compare(ranks: Sequence[Mapping[str, object]], remedy: str) -> None:
    """Raise ValueError for the first rank that has other values than rank 0.

    >>> compare([{"lr": 1e-5, "seed": 0}, {"lr": 1e-3, "seed": 0}], "start all ranks with the same command")
    Traceback (most recent call last):
    ValueError: rank 1 has lr 0.001, rank 0 has lr 1e-05; start all ranks with the same command
    """
    first = ranks[0]
    for number, values in enumerate(ranks):
        names = [name for name in {**first, **values} if values.get(name) != first.get(name)]
        if names:
            raise ValueError(
                f"rank {number} has {_listed(names, values)}, rank 0 has {_listed(names, first)}; {remedy}"
            )


def _listed(names: Sequence[str], values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {values.get(name)}" for name in names)
