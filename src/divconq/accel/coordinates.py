"""Coordinates in which distances keep their precision: float64, around the centre of the data."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

UNIT = (0.5, 2.0)  # squared lengths of vectors that were normalised in any float type
SPREAD = 0.01  # share of the mean square; below it a float32 product of unit vectors changes the order of neighbours
BLOCK = 1 << 24  # bytes to convert at once
EXPONENT = 1000  # the largest power of two to scale by: 2^1000 and 2^-1000 are normal numbers in float64


@dataclass(frozen=True)
class Coordinates:
    """The map from vectors to float64 coordinates, scaled by a power of two and relative to a centre."""

    centre: Float64[Tensor, " d"]
    scale: float

    def __call__(self, x: Float[Tensor, "*n d"]) -> Float64[Tensor, "*n d"]:
        """Return the vectors in these coordinates."""
        return scaled(x, self.scale) - self.centre


def wide_coordinates(query: Float[Tensor, "q d"], gallery: Float[Tensor, "g d"]) -> Coordinates | None:
    """Return float64 coordinates for the distances between query and gallery, or None if float32 is enough.

    Float32 is enough for unit vectors that are ``spread_out``, in any type below float64. The score x·y - |y|²/2 has a
    rounding error of about 1e-7 |y|². That hides small distances between vectors that are far from the origin. The
    centre is the gallery vector nearest to the mean: differences of whole numbers stay whole, so equal distances
    stay equal.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> wide_coordinates(x, x) is None
    True
    >>> x = torch.tensor([[1000.0], [1001.0], [1003.0]])
    >>> coordinates = wide_coordinates(x, x)
    >>> (coordinates(x) / coordinates.scale).flatten().tolist()
    [-1.0, 0.0, 2.0]
    """
    narrow = torch.float64 not in (query.dtype, gallery.dtype) and bool((_lengths(query) <= UNIT[1]).all())
    if narrow and of_unit_length(gallery) and spread_out(gallery):
        return None
    scale = power_of_two(query, gallery)
    mean = _mean(gallery, scale)
    far = torch.cat([(block - mean).square().sum(1) for block in _blocks(gallery, scale)])
    return Coordinates(scaled(gallery[far.argmin()], scale), scale)


def of_unit_length(x: Float[Tensor, "n d"]) -> bool:
    """Return whether the vectors are about as long as unit vectors; some may be shorter.

    >>> of_unit_length(torch.eye(3)), of_unit_length(3 * torch.eye(3))
    (True, False)
    """
    lengths = _lengths(x)
    return bool((lengths <= UNIT[1]).all() & (lengths.mean() >= UNIT[0]))


def spread_out(x: Float[Tensor, "n d"], share: float = SPREAD) -> bool:
    """Return whether the variance is at least a ``share`` of the mean square: the vectors surround the origin.

    >>> spread_out(torch.tensor([[1.0], [2.0]])), spread_out(torch.tensor([[100.0], [101.0]]))
    (True, False)
    """
    scale = power_of_two(x)
    square = sum(float(block.square().sum()) for block in _blocks(x, scale)) / len(x)
    return square - float(_mean(x, scale).square().sum()) >= share * square


def scaled(x: Float[Tensor, "*n d"], scale: float) -> Float64[Tensor, "*n d"]:
    """Return the vectors in float64, times ``scale``."""
    return x.detach().double() * scale


def power_of_two(*vectors: Float[Tensor, "_ d"]) -> float:
    """Return the power of two that brings the largest coordinate near 1, so that squares stay in range.

    >>> power_of_two(torch.tensor([[3.0, -12.0]]))
    0.0625
    """
    largest = max((float(x.detach().abs().max()) for x in vectors if x.numel()), default=0.0)
    exponent = int(torch.frexp(torch.tensor(largest, dtype=torch.float64)).exponent)
    return 2.0 ** -max(-EXPONENT, min(EXPONENT, exponent))


def _lengths(x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """Return the squared lengths in float32."""
    lengths: Tensor = torch.linalg.vector_norm(x.detach().float(), dim=1)
    return lengths.square()


def _mean(x: Float[Tensor, "n d"], scale: float) -> Float64[Tensor, " d"]:
    return torch.stack([block.sum(0) for block in _blocks(x, scale)]).sum(0) / len(x)


def _blocks(x: Float[Tensor, "n d"], scale: float) -> Iterator[Float64[Tensor, "_ d"]]:
    for block in x.split(max(1, BLOCK // (8 * max(1, x.shape[1])))):
        yield scaled(block, scale)
