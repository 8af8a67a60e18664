"""Which cluster every training image belongs to."""

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from divconq.checks import check_power_of_two


def check_labels(name: str, labels: Int64[Tensor, " n"], k: int) -> None:
    """Refuse labels that are not the names 0 .. k-1 of k clusters.

    >>> check_labels("labels", torch.tensor([0, 4]), 4)
    Traceback (most recent call last):
    ValueError: labels must lie between 0 and 3 for k = 4, got 0 to 4; renumber them or raise k
    """
    if len(labels) and (int(labels.min()) < 0 or int(labels.max()) >= k):
        raise ValueError(
            f"{name} must lie between 0 and {k - 1} for k = {k}, "
            f"got {int(labels.min())} to {int(labels.max())}; renumber them or raise k"
        )


@dataclass(frozen=True, eq=False)
class Partition:
    """The images in ``k`` clusters; the children of cluster ``i`` are ``2i`` and ``2i + 1``.

    >>> partition = Partition(torch.tensor([0, 3, 3, 1]), k=4)
    >>> partition.sizes().tolist(), partition.parent().labels.tolist()
    ([1, 1, 0, 2], [0, 1, 1, 0])
    """

    labels: Int64[Tensor, " n"]
    k: int

    def __post_init__(self) -> None:
        check_power_of_two("k", self.k)
        if self.labels.device.type != "cpu":
            raise ValueError(f"labels must be on the CPU, got {self.labels.device}; pass labels.cpu()")
        check_labels("labels", self.labels, self.k)

    @classmethod
    def whole(cls, n: int) -> "Partition":
        """All ``n`` images in one cluster, as training starts.

        >>> Partition.whole(3).labels.tolist()
        [0, 0, 0]
        """
        return cls(torch.zeros(n, dtype=torch.int64), k=1)

    def sizes(self) -> Int64[Tensor, " k"]:
        """How many images each cluster holds."""
        return torch.bincount(self.labels, minlength=self.k)

    def parent(self) -> "Partition":
        """Undo a bisection: the partition into half as many clusters that this one refines."""
        if self.k == 1:
            raise ValueError("a partition into one cluster has no parent; ask only where k > 1")
        return Partition(self.labels // 2, self.k // 2)
