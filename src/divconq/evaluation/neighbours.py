"""Exact nearest neighbours, in blocks of bounded memory and with ties broken the same way every time."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor
from torch.nn.functional import pad

from divconq.division.kmeans import exact_products

BUDGET = 512 << 20  # bytes; twice as many on a GPU
BYTES_PER_KEY = 48  # a key of 8 bytes, its score, and room to merge and sort it
# Every product of queries and gallery has this shape, on a GPU 2 x 4 times it, so that rounding is always the same.
ROWS, COLUMNS = 512, 2048
LOW = 0xFFFFFFFF  # the lower half of a key
HIDDEN = torch.iinfo(torch.int64).min  # below every key


def nearest(
    query: Float[Tensor, "q d"],
    gallery: Float[Tensor, "g d"],
    k: int,
    *,
    exclude: Int64[Tensor, " q"] | None = None,
    marks: Int64[Tensor, " g"] | None = None,
    budget: int | None = None,
) -> Iterator[Int64[Tensor, "b k"]]:
    """Gallery indices of the ``k`` nearest by Euclidean distance, block after block of queries.

    Ranks by x·y - |y|²/2 in float32, whatever float type comes in; of equals the lower index is first.
    ``exclude`` names one gallery index that each query may not find: itself, when queries search each other.
    If the gallery has ``marks``, it names a mark instead, and no image of that mark is found; a query that has
    fewer than k images left to find gets -1 for the rest.

    >>> line = torch.tensor([[0.0], [1.0], [3.0], [1.0]])
    >>> torch.cat(list(nearest(line, line, k=2, exclude=torch.arange(4)))).tolist()
    [[1, 3], [3, 0], [1, 3], [1, 0]]
    """
    if marks is not None and exclude is None:
        raise ValueError(
            "marks say what exclude means, got no exclude; pass the mark that each query excludes"
        )
    findable = len(gallery) - (exclude is not None and marks is None)
    if not 1 <= k <= findable:
        raise ValueError(f"k must lie between 1 and the {findable} gallery images a query can find, got {k}")
    if budget is None:
        budget = 2 * BUDGET if query.is_cuda else BUDGET
    rows, columns = plan(k, len(gallery), budget, tile(query.device))
    query, gallery = query.detach().float(), gallery.detach().float()
    if exclude is None:
        exclude = torch.full((len(query),), -1, device=query.device)
    if marks is None:
        marks = torch.arange(len(gallery), device=query.device)
    for block, hidden in zip(query.split(rows), exclude.split(rows), strict=True):
        yield _nearest(block, gallery, k, hidden, marks, columns)


def tile(device: torch.device) -> tuple[int, int]:
    """The shape of every product on a device.

    >>> tile(torch.device("cpu"))
    (512, 2048)
    """
    return (2 * ROWS, 4 * COLUMNS) if device.type == "cuda" else (ROWS, COLUMNS)


def plan(k: int, gallery: int, budget: int, shape: tuple[int, int]) -> tuple[int, int]:
    """How many queries, and how many gallery images, to compare at once within ``budget`` bytes, in whole tiles.

    >>> plan(k=10, gallery=60_000, budget=256 << 20, shape=(64, 2048))
    (320, 16384)
    """
    keys, (tall, wide) = budget // BYTES_PER_KEY, shape
    columns = min(_round_up(gallery, wide), _round_up(max(k, 16384), wide))
    rows = keys // (k + columns) // tall * tall
    if rows:
        return rows, columns
    columns = (keys // tall - k) // wide * wide
    if columns < wide:
        needed = tall * (k + wide) * BYTES_PER_KEY
        raise ValueError(f"budget must be at least {needed} bytes to find {k} neighbours, got {budget}")
    return tall, columns


def _nearest(
    query: Float32[Tensor, "b d"],
    gallery: Float32[Tensor, "g d"],
    k: int,
    exclude: Int64[Tensor, " b"],
    marks: Int64[Tensor, " g"],
    columns: int,
) -> Int64[Tensor, "b k"]:
    best = torch.empty(len(query), 0, dtype=torch.int64, device=query.device)
    for start in range(0, len(gallery), columns):
        scores = _scores(query, gallery[start : start + columns])
        scores.masked_fill_(marks[start : start + columns] == exclude[:, None], -torch.inf)
        best = torch.cat([best, _best_keys(scores, start, k)], 1)
        best = best.topk(min(k, best.shape[1])).values
    return (LOW - (best & LOW)).masked_fill_(best == HIDDEN, -1)


def _best_keys(scores: Float32[Tensor, "b g"], start: int, k: int) -> Int64[Tensor, "b m"]:
    """The keys of the (up to) ``k`` best of each row, in any order; the columns are numbered from ``start``.

    Scores alone decide which they are, but for the rows where others are as good as the last one chosen.
    """
    k = min(k, scores.shape[1])
    values, place = scores.topk(min(k + 1, scores.shape[1]))
    keys = _keys(values[:, :k], start + place[:, :k])
    tied = (values[:, k - 1] == values[:, -1]) & (values[:, -1] > -torch.inf)
    rows = tied.nonzero().flatten()
    if len(rows) and values.shape[1] > k:
        index = torch.arange(start, start + scores.shape[1], device=scores.device)
        keys[rows] = _keys(scores[rows], index).topk(k).values
    return keys


def _scores(query: Float32[Tensor, "b d"], gallery: Float32[Tensor, "g d"]) -> Float32[Tensor, "b g"]:
    """x·y - |y|²/2, from products of one fixed shape.

    The rounding of a product depends on its shape: equal images must not differ by the block they are in.
    """
    rows, columns = tile(query.device)
    scores = query.new_empty(_round_up(len(query), rows), _round_up(len(gallery), columns))
    with exact_products(query.device.type):
        for column in range(0, scores.shape[1], columns):
            y = _tile(gallery, column, columns)
            offset = y.square().sum(1) / -2
            for row in range(0, scores.shape[0], rows):
                out = scores[row : row + rows, column : column + columns]
                torch.addmm(offset, _tile(query, row, rows), y.T, out=out)
    return scores[: len(query), : len(gallery)]


def _tile(x: Float32[Tensor, "n d"], start: int, size: int) -> Float32[Tensor, "size d"]:
    tile = x[start : start + size]
    return pad(tile, (0, 0, 0, size - len(tile)))


def _keys(scores: Float32[Tensor, "b g"], index: Int64[Tensor, "*b g"]) -> Int64[Tensor, "b g"]:
    """One integer for each score and index: the higher score is larger, of equals the lower index.

    A score of minus infinity is ``HIDDEN``.

    The bits of a float sort like an integer once those below the sign of a negative one are turned over.
    """
    bits = (scores + 0.0).view(torch.int32)  # -0.0 + 0.0 is 0.0: the two are equal and must tie
    bits ^= (bits >> 31) & 0x7FFFFFFF
    keys = bits.long()
    keys <<= 32
    keys |= LOW - index
    return keys.masked_fill_(scores == -torch.inf, HIDDEN)


def _round_up(n: int, step: int) -> int:
    return -(-n // step) * step
