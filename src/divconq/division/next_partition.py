"""One division of the training images by any strategy, with its arguments checked."""

import warnings

from jaxtyping import Float, Int64
from torch import Tensor

from divconq.checks import check_choice, check_power_of_two
from divconq.division.partition import Partition
from divconq.division.strategies import DIVISIONS
from divconq.division.usable import usable_clusters


def divide(
    strategy: str,
    x: Float[Tensor, "n d"] | None,
    partition: Partition,
    labels: Int64[Tensor, " n"],
    *,
    k_max: int,
    seed: int,
    groups: Int64[Tensor, " n"] | None = None,
) -> Partition:
    """Return the next partition by one of ``DIVISIONS``.

    ``x`` are the embeddings of all images, ``labels`` their classes and ``groups`` their super-categories; ``x`` and
    ``groups`` may be None if the strategy does not need them.

    >>> import torch
    >>> labels = torch.arange(4).repeat_interleave(4)
    >>> divide("random", None, Partition.whole(16), labels, k_max=4, seed=0).sizes().tolist()
    [8, 8]
    """
    check_choice("division", strategy, DIVISIONS)
    _check(strategy, x, partition, labels, k_max, groups)
    way = DIVISIONS[strategy]
    divided: Partition = way.load()(x, partition, labels, k_max=k_max, seed=seed, groups=groups)
    degenerate = int((~usable_clusters(divided.clusters, labels, divided.k)).sum())
    if degenerate == divided.k and usable_clusters(partition.clusters, labels, partition.k).any():
        warnings.warn(
            f"a division into {divided.k} clusters would leave no usable cluster (two classes with two images each), "
            f"so the partition with K = {partition.k} is kept; use a smaller --k-max",
            UserWarning,
            stacklevel=2,
        )
        return partition
    if degenerate and way.needs_embeddings:
        warnings.warn(
            f"{degenerate} of {divided.k} clusters are degenerate (fewer than two classes with two images each): "
            "their images are left out until the next division; use a smaller --k-max if this goes on",
            UserWarning,
            stacklevel=2,
        )
    return divided


def _check(
    strategy: str,
    x: Tensor | None,
    partition: Partition,
    labels: Tensor,
    k_max: int,
    groups: Tensor | None,
) -> None:
    check_power_of_two("k_max", k_max)
    n = len(partition.clusters)
    if k_max > n:
        raise ValueError(
            f"k_max must be at most the number of images, got {k_max} for {n}; use a smaller k_max"
        )
    if partition.k > k_max:
        raise ValueError(f"the partition already has {partition.k} clusters; use k_max {partition.k} or more")
    if x is None and DIVISIONS[strategy].needs_embeddings:
        raise ValueError(f"division {strategy!r} needs embeddings, got x = None; pass those of every image")
    if groups is None and DIVISIONS[strategy].needs_groups:
        raise ValueError(
            f"division {strategy!r} needs super-categories, got groups = None; "
            "use a dataset that has them, or another division"
        )
    for name, values in (("x", x), ("labels", labels), ("groups", groups)):
        if values is not None and len(values) != n:
            raise ValueError(f"{name} must have one row for each of the {n} images, got {len(values)}")
