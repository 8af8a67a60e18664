"""How images are stored, and how they are seen at test time: as torchvision's Resize and CenterCrop show the file.

Storing resizes the short side to ``resize`` (bilinearly, as torchvision does) and squashes the outcome to a square
of side S by Lanczos' kernel. That is linear, with one matrix P for each axis, which depends on nothing but the
lengths; the test view undoes it by least squares, (P'P + r)^-1 P' = P' (PP' + r)^-1, and takes the middle of it.
"""

from functools import lru_cache
from math import ceil

import torch
from jaxtyping import Float, Float64, Int64, UInt8
from torch import Tensor

RIDGE = 1e-3  # r, which keeps the rounding of stored pixels from being blown up
LONGEST = 8  # times S: images that are longer are not undone but interpolated
KINDS = {"cuda": torch.float16}  # of what is seen; float32 elsewhere


def stored_side(resize: int) -> int:
    """The side S to store images at, when their short side is to be seen at ``resize``.

    A quarter more, so that a long side that was squashed still has its detail.

    >>> stored_side(256)
    320
    """
    return resize + resize // 4


def shown_side(side: int) -> int:
    """The short side at which images are seen that are stored at ``side``.

    >>> shown_side(stored_side(256)), shown_side(stored_side(55))
    (256, 55)
    """
    return side - side // 5


def check_crop(size: int, resize: int) -> None:
    """Refuse a crop larger than the image.

    >>> check_crop(224, 256)
    """
    if resize < size:
        raise ValueError(
            f"resize must be at least the size of the crop, {size}, got {resize}; use {size} or more"
        )


def true_size(aspect: Float[Tensor, " b"], resize: int) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
    """Width and height in whole pixels when the short side is ``resize``.

    >>> true_size(torch.tensor([1.5, 0.5]), 100)
    (tensor([150., 100.]), tensor([100., 200.]))
    """
    width, height = aspect.clamp(min=1), (1 / aspect).clamp(min=1)
    return (resize * width + 1e-3).floor(), (resize * height + 1e-3).floor()


def test_view(
    images: UInt8[Tensor, "b side side 3"], aspect: Float[Tensor, " b"], size: int, resize: int
) -> Float[Tensor, "b 3 size size"]:
    """The central crop of side ``size`` of images whose short side is resized to ``resize``.

    >>> test_view(torch.zeros(2, 8, 8, 3, dtype=torch.uint8), torch.tensor([1.5, 0.7]), 6, 8).shape
    torch.Size([2, 3, 6, 6])
    """
    views = Views(aspect, size=size, resize=resize, side=images.shape[1], device=images.device)
    return see(images, *views.of(torch.arange(len(images))))


test_view.__test__ = False  # type: ignore[attr-defined]  # pytest would take it for a test


def see(
    images: UInt8[Tensor, "b side side 3"],
    across: Float[Tensor, "b size side"],
    down: Float[Tensor, "b size side"],
) -> Float[Tensor, "b 3 size size"]:
    """The images as their two matrices show them, with values in [0, 1].

    >>> see(torch.full((1, 4, 4, 3), 51, dtype=torch.uint8), torch.eye(4)[None, 1:3], torch.eye(4)[None, 1:3])[0, 0]
    tensor([[0.2000, 0.2000],
            [0.2000, 0.2000]])
    """
    with torch.autocast(images.device.type, enabled=False):
        x = torch.einsum("bvy,byxc,bux->bcvu", down, images.to(down.dtype), across)
    return (x / 255).clamp(0, 1)


class Views:
    """The matrices through which the images of a set are seen, on a device.

    >>> views = Views(torch.tensor([1.5, 1.0]), size=6, resize=8, side=10, device=torch.device("cpu"))
    >>> [matrix.shape for matrix in views.of(torch.tensor([0, 1, 1]))]
    [torch.Size([3, 6, 10]), torch.Size([3, 6, 10])]
    """

    def __init__(
        self, aspect: Float[Tensor, " n"], *, size: int, resize: int, side: int, device: torch.device
    ) -> None:
        check_crop(size, resize)
        lengths = torch.stack(true_size(aspect.cpu(), resize), dim=1).long()
        present, which = lengths.unique(return_inverse=True)
        self.matrices = _matrices(tuple(present.tolist()), size, side, device)
        self.which = which.to(device)

    def of(
        self, index: Int64[Tensor, " b"]
    ) -> tuple[Float[Tensor, "b size side"], Float[Tensor, "b size side"]]:
        """The matrices of the images at ``index``: across and down."""
        across, down = self.which[index.to(self.which.device)].unbind(dim=1)
        return self.matrices[across], self.matrices[down]


@lru_cache(maxsize=16)
def _matrices(
    lengths: tuple[int, ...], size: int, side: int, device: torch.device
) -> Float[Tensor, "lengths size side"]:
    matrices = torch.stack([_matrix(length, size, side) for length in lengths])
    return matrices.to(device, KINDS.get(device.type, torch.float32))


@lru_cache(maxsize=4096)
def _matrix(length: int, size: int, side: int) -> Float64[Tensor, "size side"]:
    """The middle ``size`` of ``length`` pixels, out of the ``side`` that they were squashed to."""
    first = round((length - size) / 2)
    if length > LONGEST * side:
        return lanczos(side, length, first, size)
    squash = lanczos(length, side)
    middle = squash[:, first : first + size].T
    matrix = torch.linalg.solve(squash @ squash.T + RIDGE * torch.eye(side, dtype=torch.float64), middle.T).T
    rows: Tensor = matrix / matrix.sum(dim=1, keepdim=True)
    return rows


def lanczos(
    length: int, to: int, first: int = 0, count: int | None = None
) -> Float64[Tensor, "count length"]:
    """Resample ``length`` pixels ``to`` as many: ``count`` rows of the matrix, from the ``first`` on.

    The kernel is sinc(d) sinc(d / 3) for d < 3, made wider where pixels are left out.

    >>> lanczos(4, 4).diagonal().tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    scale = length / to
    reach = 3 * max(scale, 1)
    rows = torch.arange(first, first + (to if count is None else count), dtype=torch.float64)
    there = (rows[:, None] + 0.5) * scale
    near = torch.arange(2 * ceil(reach) + 1) + (there - reach).floor().long()  # all that a row may reach
    d = (near + 0.5 - there) / max(scale, 1)
    weight = torch.sinc(d) * torch.sinc(d / 3)
    inside = (d.abs() < 3) & (near >= 0) & (near < length)
    weight = torch.where(inside & (weight.abs() > 1e-9), weight, 0.0)  # sinc(1) comes out as 4e-17
    matrix = torch.zeros(len(rows), length, dtype=torch.float64)
    matrix.scatter_add_(1, near.clamp(0, length - 1), weight)
    return matrix / matrix.sum(dim=1, keepdim=True)
