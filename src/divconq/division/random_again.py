"""Random division, drawn again at every division (ablation of the paper, table 5).

``random_halves`` draws the splits once and then keeps them.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from divconq.division.partition import Partition


def divide(
    x: Float[Tensor, "n d"] | None,
    partition: Partition,
    labels: Int64[Tensor, " n"],
    *,
    k_max: int,
    seed: int,
    groups: Int64[Tensor, " n"] | None = None,
) -> Partition:
    """Return a new random partition into min(2 K, ``k_max``) clusters, whose sizes differ by at most one.

    Nothing of the old partition is kept: an image may leave the cluster of its parent.

    >>> divide(None, Partition.whole(6), torch.zeros(6).long(), k_max=2, seed=0).sizes().tolist()
    [3, 3]
    """
    k, n = min(2 * partition.k, k_max), len(partition.clusters)
    shuffled = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    clusters = torch.empty(n, dtype=torch.int64)
    clusters[shuffled] = torch.arange(n) % k
    return Partition(clusters, k)
