"""The paper's division: recluster, match, bisect (section 3.1.1)."""

from jaxtyping import Float, Int64
from torch import Tensor

from divconq.division.bisection import bisect
from divconq.division.flat import recluster
from divconq.division.matching import match
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
    """Recluster into the current K, match the clusters with the old ones, then bisect each if K < ``k_max``.

    >>> import torch
    >>> x, labels = torch.arange(16.0)[:, None], torch.arange(8).repeat_interleave(2)
    >>> divide(x, Partition.whole(16), labels, k_max=4, seed=0).sizes().tolist()
    [8, 8]
    """
    assert x is not None
    k = partition.k
    clusters = match(recluster(x, labels, k, seed), partition.clusters, k)
    if k == k_max:
        return Partition(clusters, k)
    return Partition(bisect(x, clusters, k, labels, seed=seed), 2 * k)
