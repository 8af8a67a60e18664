"""Flat division: all clusters at once (ablation of the paper, table 5)."""

from jaxtyping import Float, Int64
from torch import Tensor

from divconq.division.lloyd import kmeans
from divconq.division.matching import match
from divconq.division.partition import Partition
from divconq.division.usable import most_usable


def divide(
    x: Float[Tensor, "n d"] | None,
    partition: Partition,
    labels: Int64[Tensor, " n"],
    *,
    k_max: int,
    seed: int,
    groups: Int64[Tensor, " n"] | None = None,
) -> Partition:
    """Recluster into ``k_max`` clusters. From the second division on, match them with the old ones.

    >>> import torch
    >>> x, labels = torch.arange(16.0)[:, None], torch.arange(8).repeat_interleave(2)
    >>> divide(x, Partition.whole(16), labels, k_max=2, seed=0).sizes().tolist()
    [8, 8]
    """
    assert x is not None
    clusters = recluster(x, labels, k_max, seed)
    if partition.k == k_max:
        clusters = match(clusters, partition.clusters, k_max)
    return Partition(clusters, k_max)


def recluster(x: Float[Tensor, "n d"], labels: Int64[Tensor, " n"], k: int, seed: int) -> Int64[Tensor, " n"]:
    """Cluster all images by k-means. If a cluster is unusable, try again with a new seed."""
    return most_usable(lambda points, s: kmeans(points, k, s), x, labels, k, seed)
