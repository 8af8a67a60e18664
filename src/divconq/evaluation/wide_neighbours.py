"""Exact nearest neighbours in float64, for vectors whose distances float32 would lose."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import pad

from divconq.accel.coordinates import Coordinates


def wide_nearest(
    query: Float[Tensor, "q d"],
    gallery: Float[Tensor, "g d"],
    k: int,
    coordinates: Coordinates,
    exclude: Int64[Tensor, " q"] | None,
    marks: Int64[Tensor, " g"] | None,
    block: tuple[int, int],
    tile: tuple[int, int],
) -> Iterator[Int64[Tensor, "b k"]]:
    """Yield the same as ``nearest``, from scores in float64.

    A block has ``block`` rows and columns, and is computed in products of the shape ``tile``. Vectors are converted
    tile by tile.

    >>> from divconq.accel.coordinates import wide_coordinates
    >>> line = torch.tensor([[1000.0], [1001.0], [1003.0]])
    >>> list(wide_nearest(line, line, 2, wide_coordinates(line, line), None, None, (8, 8), (8, 8)))
    [tensor([[0, 1],
            [1, 0],
            [2, 1]])]
    """
    rows, columns = block
    for row in range(0, len(query), rows):
        some = query[row : row + rows]
        hidden = None if exclude is None else exclude[row : row + rows, None]
        best = torch.full((len(some), k), -torch.inf, dtype=torch.float64, device=query.device)
        index = torch.full((len(some), k), -1, device=query.device)
        for column in range(0, len(gallery), columns):
            part = slice(column, column + columns)
            scores = _scores(some, gallery[part], coordinates, tile)
            if hidden is not None:
                here = torch.arange(column, column + scores.shape[1], device=query.device)
                scores.masked_fill_((here if marks is None else marks[part]) == hidden, -torch.inf)
            best, index = _merge(best, index, scores, column)
        yield index.masked_fill_(best == -torch.inf, -1)


def _scores(
    query: Float[Tensor, "b d"],
    gallery: Float[Tensor, "g d"],
    coordinates: Coordinates,
    tile: tuple[int, int],
) -> Float64[Tensor, "b g"]:
    """Return x·y - |y|²/2, from products of one fixed shape.

    Equal vectors of the gallery must get equal scores in every block. In float64 this holds if they are the rows of
    the product, not its columns.
    """
    rows, columns = tile
    scores = torch.empty(len(query), len(gallery), dtype=torch.float64, device=query.device)
    for column in range(0, len(gallery), columns):
        y = _padded(coordinates(gallery[column : column + columns]), columns)
        half = y.square().sum(1, keepdim=True) / -2
        for row in range(0, len(query), rows):
            out = scores[row : row + rows, column : column + columns]
            x = _padded(coordinates(query[row : row + rows]), rows)
            out.copy_(torch.addmm(half, y, x.T).T[: out.shape[0], : out.shape[1]])
    return scores


def _padded(x: Float64[Tensor, "n d"], size: int) -> Float64[Tensor, "size d"]:
    return pad(x, (0, 0, 0, size - len(x)))


def _merge(
    best: Float64[Tensor, "b k"], index: Int64[Tensor, "b k"], scores: Float64[Tensor, "b g"], start: int
) -> tuple[Float64[Tensor, "b k"], Int64[Tensor, "b k"]]:
    """Return the k best of the best so far and of new scores, whose columns begin at ``start``, with their indices."""
    k = best.shape[1]
    values, place = _stable_top(torch.cat([best, scores], 1), k)
    old = index.gather(1, place.clamp(max=k - 1))
    return values, torch.where(place < k, old, start + place - k)


def _stable_top(
    scores: Float64[Tensor, "b g"], k: int
) -> tuple[Float64[Tensor, "b k"], Int64[Tensor, "b k"]]:
    """Return ``scores.topk(k)``, where the lower column comes first among equal scores.

    >>> _stable_top(torch.tensor([[1.0, 3.0, 1.0, 3.0]]).double(), 3)[1].tolist()
    [[1, 3, 0]]
    """
    values, place = scores.topk(min(k + 1, scores.shape[1]))
    tied = (values[:, k - 1] == values[:, -1]) & (values[:, -1] > -torch.inf)
    rows = tied.nonzero().flatten()
    place = place[:, :k].sort(1).values
    if values.shape[1] > k and len(rows):
        order = scores[rows].sort(dim=1, descending=True, stable=True).indices
        place[rows] = order[:, :k].sort(1).values
    values, order = scores.gather(1, place).sort(dim=1, descending=True, stable=True)
    return values, place.gather(1, order)
