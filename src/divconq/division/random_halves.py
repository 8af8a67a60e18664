"""Random division, drawn once: every cluster is split into two random halves, and stays as it is at K_max.

``random_again`` draws a new partition at every division, as the paper's ablation (table 5) does.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from divconq.division.bisection import members_of
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
    """Split every cluster into two random halves of equal size if K < ``k_max``, else keep the partition.

    >>> divide(None, Partition.whole(6), torch.zeros(6).long(), k_max=2, seed=0).sizes().tolist()
    [3, 3]
    """
    if partition.k == k_max:
        return partition
    children = 2 * partition.clusters
    shuffled = torch.randperm(len(children), generator=torch.Generator().manual_seed(seed))
    for members in members_of(partition.clusters[shuffled], partition.k):
        children[shuffled[members[1::2]]] += 1
    return Partition(children, 2 * partition.k)
