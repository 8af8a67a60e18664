"""The test view of stored images: the result of torchvision's Resize and CenterCrop on the original file.

An image is stored in two steps: its short side is resized to ``resize`` (bilinear, as in torchvision), then the
result is resampled to a square of side S with Lanczos' kernel. The second step is linear, with one matrix P per
axis that depends on the lengths only. The test view inverts it by least squares,
(P'P + r)^-1 P' = P' (PP' + r)^-1, and crops the centre.
"""

from functools import lru_cache
from math import ceil

import torch
from jaxtyping import Float, Float64, Int64, UInt8
from torch import Tensor

RIDGE = 1e-3  # r: limits the amplification of rounding errors in stored pixels
LONGEST = 8  # times S; longer images are interpolated instead
DTYPES = {"cuda": torch.float16}  # of augmented images and test views; float32 on other devices


def stored_side(resize: int) -> int:
    """Return the side S of stored images whose short side is shown at ``resize``.

    It is a quarter larger, to keep detail along the long side.

    >>> stored_side(256)
    320
    """
    return resize + resize // 4


def shown_side(side: int) -> int:
    """Return the short side at which images stored at ``side`` are shown; the inverse of ``stored_side``.

    >>> shown_side(stored_side(256)), shown_side(stored_side(55))
    (256, 55)
    """
    return side - side // 5


def check_crop(size: int, resize: int) -> None:
    """Raise a ValueError if the crop is larger than the image.

    >>> check_crop(224, 256)
    """
    if resize < size:
        raise ValueError(
            f"resize must be at least the size of the crop, {size}, got {resize}; use {size} or more"
        )


def true_size(aspect: Float[Tensor, " b"], resize: int) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
    """Return width and height in whole pixels when the short side is ``resize``.

    >>> true_size(torch.tensor([1.5, 0.5]), 100)
    (tensor([150., 100.]), tensor([100., 200.]))
    """
    width, height = aspect.clamp(min=1), (1 / aspect).clamp(min=1)
    return (resize * width + 1e-3).floor(), (resize * height + 1e-3).floor()


def test_view(
    images: UInt8[Tensor, "b side side 3"], aspect: Float[Tensor, " b"], size: int, resize: int
) -> Float[Tensor, "b 3 size size"]:
    """Return the central crop of side ``size`` of images whose short side is resized to ``resize``.

    >>> test_view(torch.zeros(2, 8, 8, 3, dtype=torch.uint8), torch.tensor([1.5, 0.7]), 6, 8).shape
    torch.Size([2, 3, 6, 6])
    """
    views = Views(aspect, size=size, resize=resize, side=images.shape[1], device=images.device)
    return apply_view(images, *views.of(torch.arange(len(images))))


test_view.__test__ = False  # type: ignore[attr-defined]  # its name looks like a test to pytest


def apply_view(
    images: UInt8[Tensor, "b side side 3"],
    across: Float[Tensor, "b size side"],
    down: Float[Tensor, "b size side"],
) -> Float[Tensor, "b 3 size size"]:
    """Multiply each image by its two matrices. Return values in [0, 1].

    >>> middle = torch.eye(4)[None, 1:3]
    >>> apply_view(torch.full((1, 4, 4, 3), 51, dtype=torch.uint8), middle, middle)[0, 0]
    tensor([[0.2000, 0.2000],
            [0.2000, 0.2000]])
    """
    with torch.autocast(images.device.type, enabled=False):
        x = torch.einsum("bvy,byxc,bux->bcvu", down, images.to(down.dtype), across)
    return (x / 255).clamp(0, 1)


class Views:
    """The view matrices of all images of a set, on a device.

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
        """Return the horizontal and vertical matrices of the images at ``index``."""
        across, down = self.which[index.to(self.which.device)].unbind(dim=1)
        return self.matrices[across], self.matrices[down]


@lru_cache(maxsize=16)
def _matrices(
    lengths: tuple[int, ...], size: int, side: int, device: torch.device
) -> Float[Tensor, "lengths size side"]:
    matrices = torch.stack([_matrix(length, size, side) for length in lengths])
    return matrices.to(device, DTYPES.get(device.type, torch.float32))


@lru_cache(maxsize=4096)
def _matrix(length: int, size: int, side: int) -> Float64[Tensor, "size side"]:
    """Return the matrix from ``side`` stored pixels to the central ``size`` of ``length`` original pixels."""
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
    """Return the matrix that resamples ``length`` pixels to ``to`` pixels: ``count`` rows, starting at ``first``.

    The kernel is sinc(d) sinc(d / 3) for |d| < 3; it is wider when the image shrinks.

    >>> lanczos(4, 4).diagonal().tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    scale = length / to
    reach = 3 * max(scale, 1)
    rows = torch.arange(first, first + (to if count is None else count), dtype=torch.float64)
    centre = (rows[:, None] + 0.5) * scale
    near = torch.arange(2 * ceil(reach) + 1) + (centre - reach).floor().long()  # all pixels under the kernel
    d = (near + 0.5 - centre) / max(scale, 1)
    weight = torch.sinc(d) * torch.sinc(d / 3)
    inside = (d.abs() < 3) & (near >= 0) & (near < length)
    weight = torch.where(inside & (weight.abs() > 1e-9), weight, 0.0)  # sinc(1) is computed as 4e-17
    matrix = torch.zeros(len(rows), length, dtype=torch.float64)
    matrix.scatter_add_(1, near.clamp(0, length - 1), weight)
    return matrix / matrix.sum(dim=1, keepdim=True)
