"""Division by ground-truth super-categories (ablation of the paper, table 5)."""

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
    """Return the next level of a fixed balanced tree over the super-categories ``groups``, until K = ``k_max``.

    The groups of a node are divided between its two children, with about the same number of images in both. A node
    with one group divides its classes; a node with one class divides its images.

    >>> groups = torch.tensor([0, 0, 0, 1, 1, 2])
    >>> divide(None, Partition.whole(6), groups, k_max=2, seed=0, groups=groups).clusters.tolist()
    [0, 0, 0, 1, 1, 1]
    """
    assert groups is not None
    k = min(2 * partition.k, k_max)
    depth = k.bit_length() - 1
    return Partition(_tree_level(groups, labels, depth), k)


def _tree_level(groups: Int64[Tensor, " n"], labels: Int64[Tensor, " n"], depth: int) -> Int64[Tensor, " n"]:
    """Return the number of every image's node, ``depth`` levels below this one."""
    node = torch.zeros_like(labels)
    if depth == 0:
        return node
    sides = _balanced_sides(_units(groups, labels))
    for side in (0, 1):
        here = sides == side
        node[here] = (side << (depth - 1)) + _tree_level(groups[here], labels[here], depth - 1)
    return node


def _units(groups: Int64[Tensor, " n"], labels: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """Return the unit that each image belongs to: its group, its class if all groups are equal, or only itself."""
    for units in (groups, labels):
        if len(units.unique()) > 1:
            return units
    return torch.arange(len(groups))


def _balanced_sides(units: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """Return side 0 or 1 of every image: whole units, largest first, each to the side with fewer images."""
    _, unit, sizes = units.unique(return_inverse=True, return_counts=True)
    side, images = torch.zeros_like(sizes), [0, 0]
    for u in sizes.argsort(descending=True, stable=True).tolist():
        side[u] = lighter = int(images[1] < images[0])
        images[lighter] += int(sizes[u])
    return side[unit]
