"""The ways to divide the training images; each is called at every division."""

import warnings
from collections.abc import Callable
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from divconq.checks import check_power_of_two, did_you_mean
from divconq.division.bisect import halve, members_of
from divconq.division.kmeans import kmeans
from divconq.division.matching import match
from divconq.division.partition import Partition

TRIES = 30  # seeds that a clustering may use up until all of its clusters are usable


def divide(
    strategy: str,
    x: Float[Tensor, "n d"] | None,
    partition: Partition,
    classes: Int64[Tensor, " n"],
    *,
    k_max: int,
    seed: int,
    groups: Int64[Tensor, " n"] | None = None,
) -> Partition:
    """Divide by one of ``DIVISIONS``; ``x`` may be None unless the strategy is in ``NEEDS_EMBEDDINGS``.

    >>> classes = torch.arange(4).repeat_interleave(4)
    >>> divide("random", None, Partition.whole(16), classes, k_max=4, seed=0).sizes().tolist()
    [8, 8]
    """
    if strategy not in DIVISIONS:
        choices = ", ".join(DIVISIONS)
        raise ValueError(
            f"unknown division {strategy!r}: choose from {choices}{did_you_mean(strategy, DIVISIONS)}"
        )
    _check(strategy, x, partition, classes, k_max, groups)
    divided = DIVISIONS[strategy](x, partition, classes, k_max=k_max, seed=seed, groups=groups)
    degenerate = int((~usable(divided.labels, classes, divided.k)).sum())
    if degenerate and strategy in NEEDS_EMBEDDINGS:
        warnings.warn(
            f"{degenerate} of {divided.k} clusters are degenerate (fewer than two classes with two images "
            "each): their images wait until the next division; use a smaller --k-max if this goes on",
            UserWarning,
            stacklevel=2,
        )
    return divided


def usable(labels: Int64[Tensor, " n"], classes: Int64[Tensor, " n"], k: int) -> Bool[Tensor, " k"]:
    """Which clusters hold at least two classes with at least two images each, so that they can be trained on.

    >>> usable(torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]), torch.tensor([5, 5, 7, 7, 5, 5, 7, 9]), k=2).tolist()
    [True, False]
    """
    names, classes = classes.unique(return_inverse=True)
    pairs, images = (labels * len(names) + classes).unique(return_counts=True)
    clusters = pairs[images >= 2] // max(len(names), 1)
    return torch.bincount(clusters, minlength=k) >= 2


def progressive(
    x: Float[Tensor, "n d"] | None,
    partition: Partition,
    classes: Int64[Tensor, " n"],
    *,
    k_max: int,
    seed: int,
    groups: Int64[Tensor, " n"] | None = None,
) -> Partition:
    """Recluster into as many clusters as now, keep their names, and bisect each while below ``k_max``.

    >>> x, classes = torch.arange(16.0)[:, None], torch.arange(8).repeat_interleave(2)
    >>> progressive(x, Partition.whole(16), classes, k_max=4, seed=0).sizes().tolist()
    [8, 8]
    """
    assert x is not None
    k = partition.k
    labels = match(_recluster(x, classes, k, seed), partition.labels, k)
    if k == k_max:
        return Partition(labels, k)
    children = 2 * labels
    for members in members_of(labels, k):
        children[members] += _most_usable(halve, x[members.to(x.device)], classes[members], 2, seed)
    return Partition(children, 2 * k)


def flat(
    x: Float[Tensor, "n d"] | None,
    partition: Partition,
    classes: Int64[Tensor, " n"],
    *,
    k_max: int,
    seed: int,
    groups: Int64[Tensor, " n"] | None = None,
) -> Partition:
    """Recluster into ``k_max`` clusters at once, and keep the names that there are.

    >>> x, classes = torch.arange(16.0)[:, None], torch.arange(8).repeat_interleave(2)
    >>> flat(x, Partition.whole(16), classes, k_max=2, seed=0).sizes().tolist()
    [8, 8]
    """
    assert x is not None
    labels = _recluster(x, classes, k_max, seed)
    if partition.k == k_max:
        labels = match(labels, partition.labels, k_max)
    return Partition(labels, k_max)


def random(
    x: Float[Tensor, "n d"] | None,
    partition: Partition,
    classes: Int64[Tensor, " n"],
    *,
    k_max: int,
    seed: int,
    groups: Int64[Tensor, " n"] | None = None,
) -> Partition:
    """Split every cluster at random into two even halves while below ``k_max``, then leave it as it is.

    >>> random(None, Partition.whole(6), torch.zeros(6).long(), k_max=2, seed=0).sizes().tolist()
    [3, 3]
    """
    if partition.k == k_max:
        return partition
    children = 2 * partition.labels
    shuffled = torch.randperm(len(children), generator=torch.Generator().manual_seed(seed))
    for members in members_of(partition.labels[shuffled], partition.k):
        children[shuffled[members[1::2]]] += 1
    return Partition(children, 2 * partition.k)


def by_labels(
    x: Float[Tensor, "n d"] | None,
    partition: Partition,
    classes: Int64[Tensor, " n"],
    *,
    k_max: int,
    seed: int,
    groups: Int64[Tensor, " n"] | None = None,
) -> Partition:
    """Go to the next level of a fixed balanced tree over the super-categories ``groups``, down to ``k_max``.

    A node's groups are shared out between its two children so that both hold about as many images; a node of
    one group shares out its classes, a node of one class its images.

    >>> groups = torch.tensor([0, 0, 0, 1, 1, 2])
    >>> by_labels(None, Partition.whole(6), groups, k_max=2, seed=0, groups=groups).labels.tolist()
    [0, 0, 0, 1, 1, 1]
    """
    assert groups is not None
    k = min(2 * partition.k, k_max)
    depth = k.bit_length() - 1
    return Partition(_tree_level(groups, classes, depth), k)


class Division(Protocol):
    """The contract of every way to divide: a function of its arguments, the seed among them."""

    def __call__(
        self,
        x: Float[Tensor, "n d"] | None,
        partition: Partition,
        classes: Int64[Tensor, " n"],
        *,
        k_max: int,
        seed: int,
        groups: Int64[Tensor, " n"] | None = None,
    ) -> Partition:
        """Give the next partition."""
        ...


DIVISIONS: dict[str, Division] = {
    "progressive": progressive,
    "flat": flat,
    "random": random,
    "labels": by_labels,
}
NEEDS_EMBEDDINGS = frozenset({"progressive", "flat"})


def _check(
    strategy: str,
    x: Tensor | None,
    partition: Partition,
    classes: Tensor,
    k_max: int,
    groups: Tensor | None,
) -> None:
    check_power_of_two("k_max", k_max)
    n = len(partition.labels)
    if k_max > n:
        raise ValueError(
            f"k_max must be at most the number of images, got {k_max} for {n}; use a smaller k_max"
        )
    if partition.k > k_max:
        raise ValueError(f"the partition has {partition.k} clusters already; use k_max {partition.k} or more")
    if x is None and strategy in NEEDS_EMBEDDINGS:
        raise ValueError(f"division {strategy!r} needs embeddings, got x = None; pass those of every image")
    if groups is None and strategy == "labels":
        raise ValueError(
            "division 'labels' needs super-categories, got groups = None; "
            "use a dataset that has them, or another division"
        )
    for name, values in (("x", x), ("classes", classes), ("groups", groups)):
        if values is not None and len(values) != n:
            raise ValueError(f"{name} must have one row for each of the {n} images, got {len(values)}")


def _recluster(
    x: Float[Tensor, "n d"], classes: Int64[Tensor, " n"], k: int, seed: int
) -> Int64[Tensor, " n"]:
    return _most_usable(lambda points, s: kmeans(points, k, s), x, classes, k, seed)


def _most_usable(
    cluster: Callable[[Tensor, int], Tensor],
    x: Float[Tensor, "n d"],
    classes: Int64[Tensor, " n"],
    k: int,
    seed: int,
) -> Int64[Tensor, " n"]:
    """Cluster until all clusters are usable, ``TRIES`` times at most, and keep the try with the most."""
    best, most = torch.zeros_like(classes), -1
    for s in range(seed, seed + TRIES):
        labels = cluster(x, s).cpu()
        count = int(usable(labels, classes, k).sum())
        if count > most:
            best, most = labels, count
        if most == k:
            break
    return best


def _tree_level(groups: Int64[Tensor, " n"], classes: Int64[Tensor, " n"], depth: int) -> Int64[Tensor, " n"]:
    """Name every image's node ``depth`` levels below this one."""
    node = torch.zeros_like(classes)
    if depth == 0:
        return node
    sides = _balanced_sides(_units(groups, classes))
    for side in (0, 1):
        here = sides == side
        node[here] = (side << (depth - 1)) + _tree_level(groups[here], classes[here], depth - 1)
    return node


def _units(groups: Int64[Tensor, " n"], classes: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """Say what stays together: groups; of one group, its classes; of one class, every image by itself."""
    for units in (groups, classes):
        if len(units.unique()) > 1:
            return units
    return torch.arange(len(groups))


def _balanced_sides(units: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """Side 0 or 1 of every image: whole units, largest first, each to the side with fewer images."""
    _, unit, sizes = units.unique(return_inverse=True, return_counts=True)
    side, images = torch.zeros_like(sizes), [0, 0]
    for u in sizes.argsort(descending=True, stable=True).tolist():
        side[u] = lighter = int(images[1] < images[0])
        images[lighter] += int(sizes[u])
    return side[unit]
