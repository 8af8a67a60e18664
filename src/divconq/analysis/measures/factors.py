"""Agreement of clusters and subspaces with the known factors of the images, such as pose or background."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64, Shaped
from torch import Tensor

from divconq.analysis.measures.clusters import partition_nmi
from divconq.analysis.measures.subspaces import subspace
from divconq.division.lloyd import kmeans
from divconq.division.partition import check_clusters

BINS = 8  # for a factor with fractional values


@dataclass(frozen=True)
class FactorTable:
    """NMI of every cluster or subspace (row) with every factor (column), from 0 to 1."""

    names: tuple[str, ...]
    values: Float64[Tensor, "k f"]

    def strongest(self, at_least: float = 0.0) -> list[tuple[str, float] | None]:
        """Return the best factor of each row with its NMI; None if the NMI is 0 or below ``at_least``.

        >>> FactorTable(("pose", "colour"), torch.tensor([[0.1, 0.6], [0.0, 0.0]]).double()).strongest()[1] is None
        True
        """
        rows = [dict(zip(self.names, row, strict=True)) for row in self.values.nan_to_num(0.0).tolist()]
        best = [max(row.items(), key=lambda item: item[1], default=("", 0.0)) for row in rows]
        return [item if item[1] > 0 and item[1] >= at_least else None for item in best]


def factors_of_clusters(
    clusters: Int64[Tensor, " n"], factors: Mapping[str, Shaped[Tensor, " n"]], k: int
) -> FactorTable:
    """Return the NMI of "is in cluster c" with the ``levels`` of every factor.

    The NMI is NaN for a cluster with no images or all images, and for a factor with one level.

    >>> factors = {"pose": torch.tensor([0, 1, 0, 1]), "colour": torch.tensor([5, 5, 7, 7])}
    >>> factors_of_clusters(torch.tensor([0, 0, 1, 1]), factors, k=2).strongest()
    [('colour', 1.0), ('colour', 1.0)]
    """
    check_clusters("clusters", clusters, k)
    columns = {name: levels(values) for name, values in factors.items()}
    rows = []
    for c in range(k):
        inside = (clusters == c).long()
        rows.append([_nmi_unless_constant(inside, column) for column in columns.values()])
    return FactorTable(tuple(columns), torch.tensor(rows, dtype=torch.float64).view(k, len(columns)))


def factors_of_subspaces(
    f: Float[Tensor, "n d"],
    masks: Float[Tensor, "k d"],
    factors: Mapping[str, Shaped[Tensor, " n"]],
    seed: int = 0,
) -> FactorTable:
    """Return the NMI of every factor with k-means clusters in every subspace.

    k-means makes as many clusters as the factor has levels. The NMI is NaN for a factor with one level. It is the
    NMI of the paper's section 4.1 with factors instead of classes.

    >>> f = torch.tensor([[1.0, 0.1], [1.0, -0.1], [-1.0, 0.1], [-1.0, -0.1]])
    >>> factors = {"left": torch.tensor([0, 0, 1, 1]), "up": torch.tensor([1, 0, 1, 0])}
    >>> factors_of_subspaces(f, torch.eye(2), factors).strongest()
    [('left', 1.0), ('up', 1.0)]
    """
    columns = {name: levels(values) for name, values in factors.items()}
    counts = {name: len(column.unique()) for name, column in columns.items()}
    rows = []
    for mask in masks:
        x = subspace(f, mask)
        groups = {count: kmeans(x, count, seed=seed) for count in set(counts.values()) if count > 1}
        rows.append(
            [
                partition_nmi(groups[counts[name]], column) if counts[name] > 1 else math.nan
                for name, column in columns.items()
            ]
        )
    return FactorTable(tuple(columns), torch.tensor(rows, dtype=torch.float64).view(len(masks), len(columns)))


def levels(values: Shaped[Tensor, " n"], bins: int = BINS) -> Int64[Tensor, " n"]:
    """Return the level of each value, numbered from 0.

    Every integer is a level. Fractional values are cut into ``bins`` bins of equal count. NaN and infinity share one
    more level.

    >>> levels(torch.tensor([7, 3, 7])).tolist(), levels(torch.tensor([0.1, 9.0, 0.2, 3.0]), bins=2).tolist()
    ([1, 0, 1], [0, 1, 0, 1])
    """
    if not values.is_floating_point():
        return _number(values)
    known = values.isfinite()
    order = values[known].double().sort().values
    if len(order) == 0:
        return torch.zeros_like(values, dtype=torch.int64)
    inner = torch.arange(1, bins, device=values.device) * len(order) // bins
    place = torch.bucketize(values.double().masked_fill(~known, 0.0), order[inner].unique(), right=True)
    return _number(place.masked_fill(~known, bins))


def _nmi_unless_constant(a: Int64[Tensor, " n"], b: Int64[Tensor, " n"]) -> float:
    """Return the NMI, or NaN if one of the two is constant."""
    return partition_nmi(a, b) if min(len(a.unique()), len(b.unique())) > 1 else math.nan


def _number(values: Shaped[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """Return the distinct values numbered from 0."""
    numbers: Tensor = values.unique(return_inverse=True)[1]
    return numbers
