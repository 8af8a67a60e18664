"""Exact nearest neighbours in blocks of bounded memory. Ties are always broken in the same way."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor
from torch.nn.functional import pad

from divconq.accel.coordinates import wide_coordinates
from divconq.accel.precision import exact_products
from divconq.evaluation.wide_neighbours import wide_nearest

BUDGET = 1 << 30  # bytes
BYTES_PER_KEY = 48  # a key of 8 bytes, its score, and room to merge and sort it
# Every product of queries and gallery has this shape (four times as wide on a GPU), for identical rounding.
ROWS, COLUMNS = 1024, 2048
LOW = 0xFFFFFFFF  # the lower half of a key
GROUP = 8  # columns whose maximum is compared first
HIDDEN = torch.iinfo(torch.int64).min  # below every key


def nearest(
    query: Float[Tensor, "q d"],
    gallery: Float[Tensor, "g d"],
    k: int,
    *,
    exclude: Int64[Tensor, " q"] | None = None,
    marks: Int64[Tensor, " g"] | None = None,
    budget: int = BUDGET,
) -> Iterator[Int64[Tensor, "b k"]]:
    """Yield the gallery indices of the ``k`` nearest neighbours by Euclidean distance, one block of queries at a time.

    The order is that of x·y - |y|²/2; among equal scores the lower index comes first. Unit vectors are compared in
    float32; float64 vectors, vectors of other lengths and vectors far from the origin in float64 (see
    ``wide_coordinates``). ``exclude`` holds one gallery index per query that it may not find, such as the query
    itself. With ``marks`` of the gallery, ``exclude`` holds a mark per query, and the query finds no image with that
    mark. A query with fewer than k images to find gets -1 for the rest. ``budget`` is the memory in bytes that a
    block may use.

    >>> line = torch.tensor([[0.0], [1.0], [3.0], [1.0]])
    >>> torch.cat(list(nearest(line, line, k=2, exclude=torch.arange(4)))).tolist()
    [[1, 3], [3, 0], [1, 3], [1, 0]]
    """
    if marks is not None and exclude is None:
        raise ValueError("marks need exclude, got None; pass the mark that each query excludes")
    findable = len(gallery) - (exclude is not None and marks is None)
    if not 1 <= k <= findable:
        raise ValueError(f"k must lie between 1 and the {findable} gallery images a query can find, got {k}")
    rows, columns = plan(k, len(gallery), budget, tile(query.device))
    coordinates = wide_coordinates(query, gallery)
    if coordinates is not None:
        shape = tile(query.device)
        yield from wide_nearest(query, gallery, k, coordinates, exclude, marks, (rows, columns), shape)
        return
    query, gallery = query.detach().float(), gallery.detach().float()
    offset = _offsets(gallery)
    scores = query.new_empty(min(rows, _round_up(len(query), tile(query.device)[0])), columns)
    for start in range(0, len(query), rows):
        block = slice(start, start + rows)
        hidden = None if exclude is None else exclude[block]
        yield _nearest(query[block], gallery, offset, k, hidden, marks, scores)


def tile(device: torch.device) -> tuple[int, int]:
    """Return the shape of every product on a device.

    >>> tile(torch.device("cpu"))
    (1024, 2048)
    """
    return (ROWS, 4 * COLUMNS) if device.type == "cuda" else (ROWS, COLUMNS)


def plan(k: int, gallery: int, budget: int, shape: tuple[int, int]) -> tuple[int, int]:
    """Return how many queries and gallery images to compare at once: whole tiles within ``budget`` bytes.

    >>> plan(k=10, gallery=60_000, budget=256 << 20, shape=(64, 2048))
    (640, 8192)
    """
    keys, (tall, wide) = budget // BYTES_PER_KEY, shape
    columns = min(_round_up(gallery, wide), _round_up(max(k, 4 * wide), wide))
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
    offset: Float32[Tensor, " o"],
    k: int,
    exclude: Int64[Tensor, " b"] | None,
    marks: Int64[Tensor, " g"] | None,
    space: Float32[Tensor, "r c"],
) -> Int64[Tensor, "b k"]:
    best = torch.empty(len(query), 0, dtype=torch.int64, device=query.device)
    columns = space.shape[1]
    for start in range(0, len(gallery), columns):
        part = slice(start, start + columns)
        scores = _scores(query, gallery[part], offset[part], space)
        if exclude is not None and marks is None:
            _hide(scores, exclude - start)
        elif exclude is not None and marks is not None:
            scores[:, : len(marks[part])].masked_fill_(marks[part] == exclude[:, None], -torch.inf)
        best = torch.cat([best, _better_keys(scores, start, k, best)], 1)
        best = best.topk(min(k, best.shape[1])).values
    return (LOW - (best & LOW)).masked_fill_(best == HIDDEN, -1)


def _hide(scores: Float32[Tensor, "b g"], column: Int64[Tensor, " b"]) -> None:
    """Set the score in the given column of each row to minus infinity; columns outside are ignored."""
    inside = ((column >= 0) & (column < scores.shape[1]))[:, None]
    place = column.clamp(0, scores.shape[1] - 1)[:, None]
    scores.scatter_(1, place, scores.gather(1, place).masked_fill_(inside, -torch.inf))


def _better_keys(
    scores: Float32[Tensor, "b g"], start: int, k: int, best: Int64[Tensor, "b m"]
) -> Int64[Tensor, "b n"]:
    """Return keys of the scores that may be among the ``k`` best, given the best of the columns before ``start``.

    On a CPU, if only a few scores exceed the lowest of the best so far, return these, and fill the rows with
    ``HIDDEN``. Scores equal to the lowest have a higher index and come after it. A GPU would wait for the count.
    """
    if scores.device.type != "cpu" or best.shape[1] < k:
        return _best_keys(scores, start, k)
    row, column = (scores > _score(best[:, -1:])).nonzero(as_tuple=True)
    if len(row) > scores.numel() // 8:
        return _best_keys(scores, start, k)
    count = row.bincount(minlength=len(scores))
    place = torch.arange(len(row)) - (count.cumsum(0) - count)[row]
    keys = torch.full((len(scores), int(count.max())), HIDDEN)
    keys[row, place] = _keys(scores[row, column], start + column)
    return keys


def _best_keys(scores: Float32[Tensor, "b g"], start: int, k: int) -> Int64[Tensor, "b m"]:
    """Return the keys of the (up to) ``k`` best scores of each row, in any order. Column numbers begin at ``start``.

    Scores select the keys, except in rows where other scores equal the last selected one.
    """
    k = min(k, scores.shape[1])
    values, place = _top(scores, min(k + 1, scores.shape[1]))
    keys = _keys(values[:, :k], start + place[:, :k])
    tied = (values[:, k - 1] == values[:, -1]) & (values[:, -1] > -torch.inf)
    rows = tied.nonzero().flatten()
    if len(rows) and values.shape[1] > k:
        index = torch.arange(start, start + scores.shape[1], device=scores.device)
        keys[rows] = _keys(scores[rows], index).topk(k).values
    return keys


def _top(scores: Float32[Tensor, "b g"], k: int) -> tuple[Float32[Tensor, "b k"], Int64[Tensor, "b k"]]:
    """Return ``scores.topk(k)``, searched in the ``k`` groups of columns with the largest maxima.

    A score outside these groups is not larger than k scores inside them.
    """
    width, left = divmod(scores.shape[1], GROUP)
    if left or width < 2 * k or scores.device.type != "cpu":
        values, place = scores.topk(k)
        return values, place
    group = _top(scores.unflatten(1, (GROUP, width)).amax(1), k)[1]
    place = (group[:, None] + torch.arange(0, scores.shape[1], width)[:, None]).flatten(1)
    values, best = scores.gather(1, place).topk(k)
    return values, place.gather(1, best)


def _offsets(gallery: Float32[Tensor, "g d"]) -> Float32[Tensor, " o"]:
    """Return -|y|²/2 of the gallery, padded to whole tiles with minus infinity."""
    wide = tile(gallery.device)[1]
    squares = [_tile(gallery, column, wide).square().sum(1) for column in range(0, len(gallery), wide)]
    offset = torch.cat(squares) / -2
    offset[len(gallery) :] = -torch.inf
    return offset


def _scores(
    query: Float32[Tensor, "b d"],
    gallery: Float32[Tensor, "g d"],
    offset: Float32[Tensor, " o"],
    space: Float32[Tensor, "r c"],
) -> Float32[Tensor, "b o"]:
    """Return x·y - |y|²/2, from products of one fixed shape.

    The rounding of a product depends on its shape, and equal images must get equal scores in every block.
    """
    rows, columns = tile(query.device)
    with exact_products(query.device.type):
        for column in range(0, len(offset), columns):
            y = _tile(gallery, column, columns)
            for row in range(0, len(query), rows):
                out = space[row : row + rows, column : column + columns]
                torch.addmm(offset[column : column + columns], _tile(query, row, rows), y.T, out=out)
    return space[: len(query), : len(offset)]


def _tile(x: Float32[Tensor, "n d"], start: int, size: int) -> Float32[Tensor, "size d"]:
    tile = x[start : start + size]
    return tile if len(tile) == size else pad(tile, (0, 0, 0, size - len(tile)))


def _keys(scores: Float32[Tensor, "*b g"], index: Int64[Tensor, "..."]) -> Int64[Tensor, "*b g"]:
    """Return one integer per score and index: larger for a higher score, then for a lower index.

    A score of minus infinity becomes ``HIDDEN``. The bits of a float sort like an integer after the bits below the
    sign are inverted for negative numbers.
    """
    bits = (scores + 0.0).view(torch.int32)  # -0.0 + 0.0 is 0.0: equal scores must have equal bits
    bits ^= (bits >> 31) & 0x7FFFFFFF
    keys = bits.long()
    keys <<= 32
    keys |= LOW - index
    return keys.masked_fill_(scores == -torch.inf, HIDDEN)


def _score(keys: Int64[Tensor, "*b"]) -> Float32[Tensor, "*b"]:
    """Return the score in a key."""
    bits = (keys >> 32).int()
    bits ^= (bits >> 31) & 0x7FFFFFFF
    return bits.view(torch.float32).masked_fill(keys == HIDDEN, -torch.inf)


def _round_up(n: int, step: int) -> int:
    return -(-n // step) * step
