"""Nearest neighbours and their distances: among all images, within a class, and in other classes."""

import math

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from divconq.accel.coordinates import wide_coordinates
from divconq.accel.precision import exact_products
from divconq.division.lloyd import check_points
from divconq.evaluation.neighbours import BUDGET, nearest
from divconq.evaluation.retrieval import occurrences

BLOCK = 1 << 26  # bytes to copy at once


def neighbours(
    x: Float[Tensor, "n d"],
    k: int,
    *,
    gallery: Float[Tensor, "g d"] | None = None,
    queries: Int64[Tensor, " q"] | None = None,
    budget: int = BUDGET,
) -> Int64[Tensor, "m k"]:
    """Return the indices of the ``k`` nearest gallery points, the nearest first.

    Without a gallery, each point searches all other points. ``queries`` selects the rows of ``x`` that search;
    the default is all rows. The result has fewer than k columns if there are fewer points to find.

    >>> neighbours(torch.tensor([[0.0], [1.0], [3.0]]), k=5).tolist()
    [[1, 2], [0, 2], [1, 0]]
    """
    check_points(x)
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}; ask for one neighbour or more")
    searched = x if gallery is None else gallery
    asked = torch.arange(len(x), device=x.device) if queries is None else queries
    k = max(0, min(k, len(searched) - (gallery is None)))
    if k == 0 or len(asked) == 0:
        return torch.empty(len(asked), k, dtype=torch.int64, device=x.device)
    exclude = asked if gallery is None else None
    query = x if queries is None else x[queries]
    return torch.cat(list(nearest(query, searched, k, exclude=exclude, budget=budget)))


def distances(
    x: Float[Tensor, "q d"], gallery: Float[Tensor, "g d"], index: Int64[Tensor, "q k"]
) -> Float32[Tensor, "q k"]:
    """Return the distances |x_i - y_j| for every gallery index j in row i of ``index``; NaN where j is -1.

    >>> line = torch.tensor([[0.0], [1.0], [3.0]])
    >>> distances(line, line, neighbours(line, k=2)).tolist()
    [[1.0, 3.0], [1.0, 2.0], [2.0, 3.0]]
    """
    result = torch.full(index.shape, math.nan, device=x.device)
    if result.numel() == 0 or len(gallery) == 0:
        return result
    rows, start = rows_per_block(8 * x.shape[1] * index.shape[1]), 0
    coordinates = wide_coordinates(x, gallery)
    for some in index.split(rows):
        block = slice(start, start + len(some))
        if coordinates is None:
            difference = x[block, None].float() - gallery[some.clamp(min=0)].float()
            result[block] = difference.norm(dim=2)
        else:
            wide = coordinates(x[block, None]) - coordinates(gallery[some.clamp(min=0)])
            result[block] = (wide.norm(dim=2) / coordinates.scale).float()
        result[block].masked_fill_(some < 0, math.nan)
        start += rows
    return result


def nearest_same(
    x: Float[Tensor, "n d"], labels: Int64[Tensor, " n"]
) -> tuple[Int64[Tensor, " n"], Float32[Tensor, " n"]]:
    """Return for each image the nearest other image of its class, and the distance.

    The index is -1 and the distance NaN if the class has no other image.

    >>> nearest_same(torch.tensor([[0.0], [1.0], [3.0], [9.0]]), torch.tensor([5, 5, 5, 2]))
    (tensor([ 1,  0,  1, -1]), tensor([1., 1., 2., nan]))
    """
    check_points(x)
    index = torch.full((len(x),), -1, device=x.device)
    points, order = x.detach(), labels.argsort(stable=True)
    coordinates = wide_coordinates(x, x) if len(x) else None
    sizes = labels.unique(return_counts=True)[1]
    starts = sizes.cumsum(0) - sizes
    for size in sizes[sizes > 1].unique().tolist():
        members = order[starts[sizes == size, None] + torch.arange(size, device=x.device)]
        for some in members.split(rows_per_block(8 * size * (size + x.shape[1]))):
            sets = points[some].float() if coordinates is None else coordinates(points[some])
            index[some] = some.gather(1, _nearest_within(sets))
    return index, distances(x, x, index[:, None])[:, 0]


def nearest_other(
    x: Float[Tensor, "n d"],
    groups: Int64[Tensor, " n"],
    ranking: Int64[Tensor, "q k"] | None = None,
    *,
    queries: Int64[Tensor, " q"] | None = None,
    budget: int = BUDGET,
) -> tuple[Int64[Tensor, " q"], Float32[Tensor, " q"]]:
    """Return for each image the nearest image of another group (class or split), and the distance.

    The index is -1 and the distance NaN if there is only one group. ``queries`` selects the rows that search.
    ``ranking`` are their known ``neighbours``: only images whose neighbours all have their own group are searched
    again.

    >>> nearest_other(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([5, 5, 2]))
    (tensor([2, 2, 1]), tensor([3., 2., 2.]))
    """
    check_points(x)
    asked = torch.arange(len(x), device=x.device) if queries is None else queries
    own, index = groups[asked], torch.full((len(asked),), -1, device=x.device)
    if ranking is not None and ranking.shape[1]:
        differs = groups[ranking] != own[:, None]
        first = ranking.gather(1, differs.int().argmax(1, keepdim=True))[:, 0]
        index = first.masked_fill(~differs.any(1), -1)
    left = (index < 0).nonzero().flatten()
    if len(left) and len(groups.unique()) > 1:
        found = nearest(x[asked[left]], x, 1, exclude=own[left], marks=groups, budget=budget)
        index[left] = torch.cat(list(found))[:, 0]
    return index, distances(x[asked], x, index[:, None])[:, 0]


def positives(
    labels: Int64[Tensor, " n"], gallery_labels: Int64[Tensor, " g"] | None = None
) -> Int64[Tensor, " n"]:
    """Return how many images of its class each image can find in the gallery, or among the other images.

    >>> positives(torch.tensor([3, 3, 8])).tolist(), positives(torch.tensor([3, 8]), torch.tensor([8])).tolist()
    ([1, 1, 0], [0, 1])
    """
    if gallery_labels is None:
        return occurrences(labels, labels) - 1
    return occurrences(labels, gallery_labels)


def rows_per_block(size: int) -> int:
    """Return how many rows of ``size`` bytes fit into one block.

    >>> rows_per_block(1 << 20)
    64
    """
    return max(1, BLOCK // size)


def _nearest_within(x: Float[Tensor, "c s d"]) -> Int64[Tensor, "c s"]:
    """Return for each point in each of c sets the nearest other point of its set; ties go to the lower index."""
    half, best = x.square().sum(2) / 2, []
    own = torch.arange(x.shape[1], device=x.device)
    with exact_products(x.device.type):
        for rows in own.split(rows_per_block(8 * len(x) * x.shape[1])):
            scores = x[:, rows] @ x.mT - half[:, None]
            scores[:, rows - rows[0], rows] = -torch.inf
            best.append(scores.argmax(2))
    return torch.cat(best, 1)
