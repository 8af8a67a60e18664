"""Who is near to whom: nearest images of all, of the same class, of another; and how far they are."""

import math

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from divconq.division.lloyd import check_points, exact_products
from divconq.evaluation.neighbours import BUDGET, nearest

BLOCK = 1 << 26  # bytes that are copied at once


def neighbours(
    x: Float[Tensor, "n d"],
    k: int,
    *,
    gallery: Float[Tensor, "g d"] | None = None,
    queries: Int64[Tensor, " q"] | None = None,
    budget: int = BUDGET,
) -> Int64[Tensor, "m k"]:
    """Indices of the ``k`` nearest in the gallery (without one: among the other points), the nearest first.

    Only for the ``queries`` if these are named. Where there are fewer than k to find, fewer are found.

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
    """Distances |x_i - y_j| to the gallery images j that are named for each i; NaN for -1.

    >>> line = torch.tensor([[0.0], [1.0], [3.0]])
    >>> distances(line, line, neighbours(line, k=2)).tolist()
    [[1.0, 3.0], [1.0, 2.0], [2.0, 3.0]]
    """
    result = torch.full(index.shape, math.nan, device=x.device)
    if result.numel() == 0 or len(gallery) == 0:
        return result
    rows, start = rows_at_once(8 * x.shape[1] * index.shape[1]), 0
    for some in index.split(rows):
        block = slice(start, start + len(some))
        difference = x[block, None].float() - gallery[some.clamp(min=0)].float()
        result[block] = difference.norm(dim=2).masked_fill(some < 0, math.nan)
        start += rows
    return result


def nearest_same(
    x: Float[Tensor, "n d"], labels: Int64[Tensor, " n"]
) -> tuple[Int64[Tensor, " n"], Float32[Tensor, " n"]]:
    """For each image the nearest other one of its class, and the distance; -1 and NaN where it is alone.

    >>> nearest_same(torch.tensor([[0.0], [1.0], [3.0], [9.0]]), torch.tensor([5, 5, 5, 2]))
    (tensor([ 1,  0,  1, -1]), tensor([1., 1., 2., nan]))
    """
    check_points(x)
    index = torch.full((len(x),), -1, device=x.device)
    points, order = x.detach().float(), labels.argsort(stable=True)
    sizes = labels.unique(return_counts=True)[1]
    starts = sizes.cumsum(0) - sizes
    for size in sizes[sizes > 1].unique().tolist():
        members = order[starts[sizes == size, None] + torch.arange(size, device=x.device)]
        for some in members.split(rows_at_once(8 * size * (size + x.shape[1]))):
            index[some] = some.gather(1, _nearest_within(points[some]))
    return index, distances(x, x, index[:, None])[:, 0]


def nearest_other(
    x: Float[Tensor, "n d"],
    marks: Int64[Tensor, " n"],
    ranking: Int64[Tensor, "q k"] | None = None,
    *,
    queries: Int64[Tensor, " q"] | None = None,
    budget: int = BUDGET,
) -> tuple[Int64[Tensor, " q"], Float32[Tensor, " q"]]:
    """For each image the nearest one of another mark (class, or split), and the distance; -1 and NaN if none.

    Only for the ``queries`` if these are named. If the ``neighbours`` of each are known already, only those are
    searched whose neighbours all have its mark.

    >>> nearest_other(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([5, 5, 2]))
    (tensor([2, 2, 1]), tensor([3., 2., 2.]))
    """
    check_points(x)
    asked = torch.arange(len(x), device=x.device) if queries is None else queries
    own, index = marks[asked], torch.full((len(asked),), -1, device=x.device)
    if ranking is not None and ranking.shape[1]:
        differs = marks[ranking] != own[:, None]
        first = ranking.gather(1, differs.int().argmax(1, keepdim=True))[:, 0]
        index = first.masked_fill(~differs.any(1), -1)
    left = (index < 0).nonzero().flatten()
    if len(left) and len(marks.unique()) > 1:
        found = nearest(x[asked[left]], x, 1, exclude=own[left], marks=marks, budget=budget)
        index[left] = torch.cat(list(found))[:, 0]
    return index, distances(x[asked], x, index[:, None])[:, 0]


def _nearest_within(x: Float32[Tensor, "c s d"]) -> Int64[Tensor, "c s"]:
    """For each point, in each of c sets of one size, the nearest other of its set; of equals the first."""
    half, best = x.square().sum(2) / 2, []
    own = torch.arange(x.shape[1], device=x.device)
    with exact_products(x.device.type):
        for rows in own.split(rows_at_once(8 * len(x) * x.shape[1])):
            scores = x[:, rows] @ x.mT - half[:, None]
            scores[:, rows - rows[0], rows] = -torch.inf
            best.append(scores.argmax(2))
    return torch.cat(best, 1)


def rows_at_once(size: int) -> int:
    """How many rows of ``size`` bytes are copied at once.

    >>> rows_at_once(1 << 20)
    64
    """
    return max(1, BLOCK // size)
