"""Divide the training images into clusters: arrays in, arrays out (paper, section 3.1.1).

Importing this package does not import torch: its names are loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from divconq.division.strategies import DIVISIONS, Strategy

if TYPE_CHECKING:
    from divconq.division.bisection import bisect
    from divconq.division.lloyd import kmeans
    from divconq.division.matching import match
    from divconq.division.next_partition import divide
    from divconq.division.partition import Partition
    from divconq.division.usable import usable_clusters

__all__ = ["DIVISIONS", "Partition", "Strategy", "bisect", "divide", "kmeans", "match", "usable_clusters"]

_MODULES = {
    "Partition": "partition",
    "bisect": "bisection",
    "divide": "next_partition",
    "kmeans": "lloyd",
    "match": "matching",
    "usable_clusters": "usable",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in _MODULES:
        raise AttributeError(f"module 'divconq.division' has no attribute {name!r}")
    return getattr(import_module(f"divconq.division.{_MODULES[name]}"), name)
