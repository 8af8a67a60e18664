"""The test view of stored images: the result of torchvision's Resize and CenterCrop on the original file.

An image is stored in two steps: its short side is resized to ``resize`` (bilinear, as in torchvision), then the
result is resampled to a square of side S with Lanczos' kernel. The second step is linear, with one matrix P per
axis that depends on the lengths only. The test view inverts it by least squares,
(P'P + r)^-1 P' = P' (PP' + r)^-1, and crops the centre.

With ``decode_size``, the first step resizes to ``decode_size`` instead. Let B be the bilinear matrix of this step, and
A that of the resize to ``resize``, both from the original file. The test view is the least-squares estimate of A from
the stored pixels: AB'P' (PBB'P' + r)^-1. The size of the file is not stored, so AB' and BB' are sums over two sizes:
that of the decoded image, where B is the identity, and twice as large, with twice the weight (``ORIGINALS``).
"""

from collections.abc import Callable
from functools import lru_cache
from math import ceil

import torch
from jaxtyping import Float, Float64, Int64, UInt8
from torch import Tensor

RIDGE = 1e-3  # r: limits the amplification of rounding errors in stored pixels
ORIGINALS = (1, 2)  # sizes of the original file, as multiples of the decoded image
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
    images: UInt8[Tensor, "b side side 3"],
    aspect: Float[Tensor, " b"],
    size: int,
    resize: int,
    decode_size: int | None = None,  # noqa: PT028
) -> Float[Tensor, "b 3 size size"]:
    """Return the central crop of side ``size`` of images whose short side is resized to ``resize``.

    ``decode_size`` is the short side of the images before they became squares; by default it is ``resize``.

    >>> test_view(torch.zeros(2, 8, 8, 3, dtype=torch.uint8), torch.tensor([1.5, 0.7]), 6, 8).shape
    torch.Size([2, 3, 6, 6])
    """
    side, device = images.shape[1], images.device
    views = Views(aspect, size=size, resize=resize, side=side, device=device, decode_size=decode_size)
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
        self,
        aspect: Float[Tensor, " n"],
        *,
        size: int,
        resize: int,
        side: int,
        device: torch.device,
        decode_size: int | None = None,
    ) -> None:
        check_crop(size, resize)
        shorts = (resize, resize if decode_size is None else decode_size)
        lengths = torch.stack([torch.stack(true_size(aspect.cpu(), short), dim=1) for short in shorts], dim=2)
        present, which = lengths.long().flatten(0, 1).unique(dim=0, return_inverse=True)
        self.matrices = _matrices(tuple(map(tuple, present.tolist())), size, side, device)
        self.which = which.view(-1, 2).to(device)

    def of(
        self, index: Int64[Tensor, " b"]
    ) -> tuple[Float[Tensor, "b size side"], Float[Tensor, "b size side"]]:
        """Return the horizontal and vertical matrices of the images at ``index``."""
        across, down = self.which[index.to(self.which.device)].unbind(dim=1)
        return self.matrices[across], self.matrices[down]


@lru_cache(maxsize=16)
def _matrices(
    lengths: tuple[tuple[int, int], ...], size: int, side: int, device: torch.device
) -> Float[Tensor, "lengths size side"]:
    matrices = torch.stack([_matrix(length, decoded, size, side) for length, decoded in lengths])
    return matrices.to(device, DTYPES.get(device.type, torch.float32))


@lru_cache(maxsize=4096)
def _matrix(length: int, decoded: int, size: int, side: int) -> Float64[Tensor, "size side"]:
    """Return the matrix from ``side`` stored pixels to the central ``size`` of ``length`` shown pixels.

    ``decoded`` is the length of the image before it became a square.
    """
    first = round((length - size) / 2)
    if decoded > LONGEST * side:
        return lanczos(side, length, first, size)
    squash = lanczos(decoded, side)
    if decoded == length:
        middle, gram = squash[:, first : first + size].T, squash @ squash.T
    else:
        seen, shown = torch.zeros(decoded, decoded), torch.zeros(size, decoded)  # B B' and A B'
        for scale in ORIGINALS:
            original = scale * decoded
            to_decoded = scale * bilinear(original, decoded).T
            seen = seen + bilinear(original, decoded).to_sparse() @ to_decoded
            shown = shown + bilinear(original, length, first, size).to_sparse() @ to_decoded
        middle, gram = shown @ squash.T, squash.to_sparse() @ seen @ squash.T
    matrix = torch.linalg.solve(gram + RIDGE * torch.eye(side, dtype=torch.float64), middle.T).T
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
    return _resample(length, to, first, count, 3, lambda d: torch.sinc(d) * torch.sinc(d / 3))


def bilinear(
    length: int, to: int, first: int = 0, count: int | None = None
) -> Float64[Tensor, "count length"]:
    """Return the same matrix for the kernel 1 - |d|: torchvision's antialiased bilinear interpolation.

    >>> bilinear(4, 2)
    tensor([[0.4286, 0.4286, 0.1429, 0.0000],
            [0.0000, 0.1429, 0.4286, 0.4286]], dtype=torch.float64)
    """
    return _resample(length, to, first, count, 1, lambda d: 1 - d.abs())


def _resample(
    length: int, to: int, first: int, count: int | None, width: int, kernel: Callable[[Tensor], Tensor]
) -> Float64[Tensor, "count length"]:
    """Return the matrix of a kernel that is 0 from a distance of ``width`` pixels on."""
    scale = length / to
    reach = width * max(scale, 1)
    rows = torch.arange(first, first + (to if count is None else count), dtype=torch.float64)
    centre = (rows[:, None] + 0.5) * scale
    near = torch.arange(2 * ceil(reach) + 1) + (centre - reach).floor().long()  # all pixels under the kernel
    d = (near + 0.5 - centre) / max(scale, 1)
    weight = kernel(d)
    inside = (d.abs() < width) & (near >= 0) & (near < length)
    weight = torch.where(inside & (weight.abs() > 1e-9), weight, 0.0)  # sinc(1) is computed as 4e-17
    matrix = torch.zeros(len(rows), length, dtype=torch.float64)
    matrix.scatter_add_(1, near.clamp(0, length - 1), weight)
    return matrix / matrix.sum(dim=1, keepdim=True)
