"""Two-means inside every cluster."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from divconq.division.kmeans import check_points, kmeans
from divconq.division.partition import check_labels


def bisect(
    x: Float[Tensor, "n d"], labels: Int64[Tensor, " n"], k: int, seed: int = 0
) -> Int64[Tensor, " n"]:
    """Split each of ``k`` clusters by 2-means; the children of ``c`` are ``2c`` and ``2c + 1``.

    >>> children = bisect(torch.tensor([[0.0], [1.0], [8.0], [9.0]]), torch.tensor([0, 0, 1, 1]), k=2)
    >>> sorted(children.tolist()), (children // 2).tolist()
    ([0, 1, 2, 3], [0, 0, 1, 1])
    """
    check_points(x)
    if len(labels) != len(x):
        raise ValueError(f"every point needs one label, got {len(labels)} labels for {len(x)} points")
    check_labels("labels", labels, k)
    children = 2 * labels
    for members in members_of(labels, k):
        children[members] += halve(x[members.to(x.device)], seed).to(labels.device)
    return children


def halve(x: Float[Tensor, "n d"], seed: int = 0) -> Int64[Tensor, " n"]:
    """Two sides, 0 and 1, of one cluster by 2-means; identical points are split evenly, one point is side 0.

    >>> halve(torch.ones(5, 2)).tolist()
    [0, 0, 0, 1, 1]
    """
    if len(x) < 2 or bool((x == x[0]).all()):
        rank = torch.arange(len(x), device=x.device)
        return (rank >= (len(x) + 1) // 2).long()
    return kmeans(x, 2, seed)


def members_of(labels: Int64[Tensor, " n"], k: int) -> tuple[Int64[Tensor, " _"], ...]:
    """List the indices of each cluster's images, in order.

    >>> members_of(torch.tensor([1, 0, 1]), k=3)
    (tensor([1]), tensor([0, 2]), tensor([], dtype=torch.int64))
    """
    sizes: list[int] = torch.bincount(labels, minlength=k).tolist()
    return torch.split(labels.argsort(stable=True), sizes)
