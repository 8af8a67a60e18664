"""Usable clusters: those with enough images to train on."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

TRIES = 30  # seeds that a clustering may try until all of its clusters are usable


def usable_clusters(clusters: Int64[Tensor, " n"], labels: Int64[Tensor, " n"], k: int) -> Bool[Tensor, " k"]:
    """Return which clusters can be trained on: those with two classes of at least two images each.

    >>> usable_clusters(torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]), torch.tensor([5, 5, 7, 7, 5, 5, 7, 9]), k=2).tolist()
    [True, False]
    """
    classes, labels = labels.unique(return_inverse=True)
    pairs, images = (clusters * len(classes) + labels).unique(return_counts=True)
    with_two_images = pairs[images >= 2] // max(len(classes), 1)
    return torch.bincount(with_two_images, minlength=k) >= 2


def most_clusters(labels: Int64[Tensor, " n"]) -> int:
    """Return the largest power of two K for which images with these labels can fill K usable clusters.

    A class of n images can serve n // 2 clusters, and every cluster needs two different classes.

    >>> most_clusters(torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])), most_clusters(torch.tensor([0, 0, 1, 1]))
    (2, 1)
    """
    pairs, k = labels.bincount() // 2, 1
    while int(pairs.clamp(max=2 * k).sum()) >= 4 * k:
        k *= 2
    return k


def most_usable(
    cluster: Callable[[Tensor, int], Tensor],
    x: Float[Tensor, "n d"],
    labels: Int64[Tensor, " n"],
    k: int,
    seed: int,
) -> Int64[Tensor, " n"]:
    """Cluster ``x`` with new seeds until all ``k`` clusters are usable. Return the result with the most usable ones.

    ``cluster(x, seed)`` returns the cluster of each row. At most ``TRIES`` seeds are tried.
    """
    best, most = torch.zeros_like(labels), -1
    for s in range(seed, seed + TRIES):
        clusters = cluster(x, s).cpu()
        count = int(usable_clusters(clusters, labels, k).sum())
        if count > most:
            best, most = clusters, count
        if most == k:
            break
    return best
