"""A crop with an antialiasing filter, from images that are stored larger than they are shown.

One bilinear interpolation reads four pixels, however many a pixel of the crop covers. The filter here is a triangle
that is as wide as a pixel of the crop, as in torchvision's antialiased resize. A crop with a flip is linear along each
axis, so it is one matrix per image and axis. Shapes do not depend on the values, and nothing is read from the device.
"""

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from divconq.data.batches.views import DTYPES


def crop_and_flip(
    images: UInt8[Tensor, "b side side 3"],
    left: Float[Tensor, " b"],
    top: Float[Tensor, " b"],
    width: Float[Tensor, " b"],
    height: Float[Tensor, " b"],
    flip: Bool[Tensor, " b"],
    size: int,
) -> Float[Tensor, "b 3 size size"]:
    """Return a box of each image, in pixels of the stored square, resized to ``size`` and flipped left to right.

    The values lie in [0, 255], in float32, or on a GPU in float16.

    >>> images = torch.arange(0, 64, 4, dtype=torch.uint8).view(1, 4, 4, 1).expand(1, 4, 4, 3)
    >>> left, size, flip = torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([True])
    >>> crop_and_flip(images, left, left, size, size, flip, 2)[0, 0]
    tensor([[24., 20.],
            [40., 36.]])
    """
    side, dtype = images.shape[1], DTYPES.get(images.device.type, torch.float32)
    across = crop_matrix(left, width, flip, size, side).to(dtype)
    down = crop_matrix(top, height, torch.zeros_like(flip), size, side).to(dtype)
    return torch.einsum("bvy,byxc,bux->bcvu", down, images.to(dtype), across)


def crop_matrix(
    start: Float[Tensor, " b"], length: Float[Tensor, " b"], mirror: Bool[Tensor, " b"], size: int, side: int
) -> Float[Tensor, "b size side"]:
    """Return the matrices from ``side`` pixels to ``size`` pixels of the part from ``start`` on.

    A pixel that lies in the part by a share only has that share of its weight.

    >>> crop_matrix(torch.tensor([1.0]), torch.tensor([4.0]), torch.tensor([False]), 2, 6)
    tensor([[[0.0000, 0.4286, 0.4286, 0.1429, 0.0000, 0.0000],
             [0.0000, 0.0000, 0.1429, 0.4286, 0.4286, 0.0000]]])
    """
    row = torch.arange(size, device=start.device)
    row = torch.where(mirror[:, None], size - 1 - row, row)
    scale = (length / size)[:, None, None]
    centre = start[:, None, None] + (row[:, :, None] + 0.5) * scale
    edge = torch.arange(side, device=start.device)
    first, last = start[:, None, None], (start + length)[:, None, None]
    covered = (torch.minimum(edge + 1, last) - torch.maximum(edge, first)).clamp(0, 1)
    weight = (1 - (edge + 0.5 - centre).abs() / scale.clamp(min=1)).clamp(min=0) * covered
    return weight / weight.sum(dim=2, keepdim=True)
