"""Bisection: 2-means inside every cluster (paper, equation 3)."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from divconq.division.lloyd import check_points, kmeans
from divconq.division.partition import check_clusters
from divconq.division.usable import most_usable


def bisect(
    x: Float[Tensor, "n d"],
    clusters: Int64[Tensor, " n"],
    k: int,
    labels: Int64[Tensor, " n"] | None = None,
    *,
    seed: int = 0,
) -> Int64[Tensor, " n"]:
    """Split each of ``k`` clusters by 2-means; the children of ``c`` are ``2c`` and ``2c + 1``.

    With class ``labels``, a split with an unusable child is repeated with other seeds.

    >>> children = bisect(torch.tensor([[0.0], [1.0], [8.0], [9.0]]), torch.tensor([0, 0, 1, 1]), k=2)
    >>> sorted(children.tolist()), (children // 2).tolist()
    ([0, 1, 2, 3], [0, 0, 1, 1])
    """
    check_points(x)
    if len(clusters) != len(x):
        raise ValueError(f"every point needs one cluster, got {len(clusters)} clusters for {len(x)} points")
    check_clusters("clusters", clusters, k)
    children = 2 * clusters
    for members in members_of(clusters, k):
        points = x[members.to(x.device)]
        sides = (
            halve(points, seed) if labels is None else most_usable(halve, points, labels[members], 2, seed)
        )
        children[members] += sides.to(clusters.device)
    return children


def halve(x: Float[Tensor, "n d"], seed: int = 0) -> Int64[Tensor, " n"]:
    """Return side 0 or 1 of every point by 2-means.

    Identical points are split into equal halves; a single point is on side 0.

    >>> halve(torch.ones(5, 2)).tolist()
    [0, 0, 0, 1, 1]
    """
    if len(x) < 2 or bool((x == x[0]).all()):
        rank = torch.arange(len(x), device=x.device)
        return (rank >= (len(x) + 1) // 2).long()
    return kmeans(x, 2, seed)


def members_of(clusters: Int64[Tensor, " n"], k: int) -> tuple[Int64[Tensor, " _"], ...]:
    """Return the indices of each cluster's images, in ascending order.

    >>> members_of(torch.tensor([1, 0, 1]), k=3)
    (tensor([1]), tensor([0, 2]), tensor([], dtype=torch.int64))
    """
    sizes: list[int] = torch.bincount(clusters, minlength=k).tolist()
    return torch.split(clusters.argsort(stable=True), sizes)
