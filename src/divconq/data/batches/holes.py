"""Cutout: black holes in a batch of images."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from divconq.data.batches.augmentation import HOLE


def cut(x: Float[Tensor, "b c h w"], holes: Float[Tensor, "b holes 4"]) -> Float[Tensor, "b c h w"]:
    """Return the images with black rectangles; ``holes`` (left, top, right, bottom) are shares of the side.

    >>> cut(torch.ones(1, 1, 2, 2), torch.tensor([[[0.0, 0.0, 0.5, 1.0]]]))[0, 0]
    tensor([[0., 1.],
            [0., 1.]])
    """
    share = (torch.arange(x.shape[3], device=x.device) + 0.5) / x.shape[3]
    left, top, right, bottom = (edge[:, :, None] for edge in holes.unbind(dim=2))
    across, down = (left <= share) & (share < right), (top <= share) & (share < bottom)
    inside = (down[:, :, :, None] & across[:, :, None, :]).any(dim=1, keepdim=True)
    return x.masked_fill(inside, 0.0)


def fixed_holes(
    places: Float[Tensor, "b holes 2"], counts: Int64[Tensor, " b"], size: int
) -> Float[Tensor, "b holes 4"]:
    """Return holes of ``HOLE * size`` whole pixels, which start at whole pixels and lie inside the image.

    The holes after the first ``counts`` have no area.

    >>> fixed_holes(torch.tensor([[[0.0, 0.999]]]), torch.tensor([1]), 224) * 224
    tensor([[[  0., 184.,  40., 224.]]])
    """
    side = max(1, round(HOLE * size))
    corner = (places * (size - side + 1)).floor()
    present = torch.arange(places.shape[1], device=places.device) < counts[:, None]
    return torch.cat([corner, corner + side * present[:, :, None]], dim=2) / size
