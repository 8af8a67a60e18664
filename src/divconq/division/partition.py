"""The partition: the cluster of every training image."""

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from divconq.checks import check_power_of_two


def check_clusters(name: str, clusters: Int64[Tensor, " n"], k: int) -> None:
    """Raise ValueError unless all values are cluster numbers 0 .. k-1.

    >>> check_clusters("clusters", torch.tensor([0, 4]), 4)
    Traceback (most recent call last):
    ValueError: clusters must be from 0 to 3 for k = 4, got 0 to 4; renumber them or raise k
    """
    if len(clusters) and (int(clusters.min()) < 0 or int(clusters.max()) >= k):
        raise ValueError(
            f"{name} must be from 0 to {k - 1} for k = {k}, "
            f"got {int(clusters.min())} to {int(clusters.max())}; renumber them or raise k"
        )


@dataclass(frozen=True, eq=False)
class Partition:
    """The training images in ``k`` clusters; ``clusters[i]`` is the cluster of image i.

    A bisection gives cluster ``c`` the children ``2c`` and ``2c + 1``.

    >>> partition = Partition(torch.tensor([0, 3, 3, 1]), k=4)
    >>> partition.sizes().tolist(), partition.parent().clusters.tolist()
    ([1, 1, 0, 2], [0, 1, 1, 0])
    """

    clusters: Int64[Tensor, " n"]
    k: int

    def __post_init__(self) -> None:
        check_power_of_two("k", self.k)
        if self.clusters.device.type != "cpu":
            raise ValueError(f"clusters must be on the CPU, got {self.clusters.device}; pass clusters.cpu()")
        check_clusters("clusters", self.clusters, self.k)

    @classmethod
    def whole(cls, n: int) -> "Partition":
        """Return ``n`` images in one cluster, the start of training.

        >>> Partition.whole(3).clusters.tolist()
        [0, 0, 0]
        """
        return cls(torch.zeros(n, dtype=torch.int64), k=1)

    def sizes(self) -> Int64[Tensor, " k"]:
        """Return the number of images of each cluster."""
        return torch.bincount(self.clusters, minlength=self.k)

    def parent(self) -> "Partition":
        """Undo a bisection: return the partition into half as many clusters that this one refines."""
        if self.k == 1:
            raise ValueError("a partition into one cluster has no parent; call parent() only where k > 1")
        return Partition(self.clusters // 2, self.k // 2)
