"""Random augmentation of a batch, on the device of the batch.

The input images are squares of side S, and ``aspect`` is their original width / height. Crops are taken from the
original image with its short side resized to ``resize``. S should be ``views.stored_side(resize)``: smaller images
give blurred crops, much larger ones give aliasing; for those there is ``augment_antialiased``. The output lies in
[0, 1], in float32, or on a GPU in float16, whose steps are eight times finer than those of 8-bit pixels. The model
normalises it.

Random numbers are drawn on the CPU, so they are the same on every device. ``augment`` has no loop over images, no
data-dependent shape, and does not wait for the device. Crop, flip, rotation and shift are one affine map with one
bilinear interpolation; the image is reflected at its border. A crop that needs no interpolation (S equal to
``resize``, aspect 1, no rotation or shift) copies the pixels exactly.

``augment_antialiased`` filters the pixels of the crop first. Rotation and shift are then a second interpolation, of
the crop, which is reflected at its border.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, Num, UInt8
from torch import Tensor

from divconq.data.batches.antialiased_crop import crop_and_flip
from divconq.data.batches.augmentation import BLURS, RATIOS, Draws
from divconq.data.batches.holes import cut, fixed_holes
from divconq.data.batches.views import DTYPES, check_crop, true_size

LUMA = (0.2989, 0.587, 0.114)
AT_ONCE = 16  # images that a CPU augments at once; they fit into its caches
REACH = max(BLURS) // 2  # pixels outside the crop that a blur needs


def augment(
    images: UInt8[Tensor, "b side side 3"],
    aspect: Float[Tensor, " b"],
    draws: Draws,
    size: int,
    resize: int,
) -> Float[Tensor, "b 3 size size"]:
    """Return the augmented images: crop, flip, rotation, shift, blur, holes and colours, in this order.

    >>> from divconq.data.batches.augmentation import AUGMENTATIONS, draw
    >>> draws = draw(2, AUGMENTATIONS["standard"], generator=torch.Generator().manual_seed(0))
    >>> augment(torch.zeros(2, 8, 8, 3, dtype=torch.uint8), torch.ones(2), draws, 6, 8).shape
    torch.Size([2, 3, 6, 6])
    """
    return _in_parts(images, aspect, draws, size, resize, antialias=False)


def augment_antialiased(
    images: UInt8[Tensor, "b side side 3"],
    aspect: Float[Tensor, " b"],
    draws: Draws,
    size: int,
    resize: int,
) -> Float[Tensor, "b 3 size size"]:
    """Return the augmented images, as ``augment`` does, with an antialiased crop of images of any side S.

    >>> from divconq.data.batches.augmentation import AUGMENTATIONS, draw
    >>> draws = draw(2, AUGMENTATIONS["standard"], generator=torch.Generator().manual_seed(0))
    >>> augment_antialiased(torch.zeros(2, 20, 20, 3, dtype=torch.uint8), torch.ones(2), draws, 6, 8).shape
    torch.Size([2, 3, 6, 6])
    """
    return _in_parts(images, aspect, draws, size, resize, antialias=True)


def _in_parts(
    images: UInt8[Tensor, "b side side 3"],
    aspect: Float[Tensor, " b"],
    draws: Draws,
    size: int,
    resize: int,
    *,
    antialias: bool,
) -> Float[Tensor, "b 3 size size"]:
    check_crop(size, resize)
    if images.device.type == "cpu" and len(images) > AT_ONCE:
        parts = [slice(first, first + AT_ONCE) for first in range(0, len(images), AT_ONCE)]
        return torch.cat(
            [_augment(images[i], aspect[i], draws.part(i), size, resize, antialias) for i in parts]
        )
    return _augment(images, aspect, draws, size, resize, antialias)


def _augment(
    images: UInt8[Tensor, "b side side 3"],
    aspect: Float[Tensor, " b"],
    draws: Draws,
    size: int,
    resize: int,
    antialias: bool,
) -> Float[Tensor, "b 3 size size"]:
    margin = 0 if draws.blur is None else REACH
    crop = _filtered_crop if antialias else _crop
    x = crop(images, aspect, draws, size, resize, margin)
    if draws.blur is not None:
        x = _box_blur(x, draws.blur)
    if draws.holes is not None:
        x = cut(x, draws.holes)
    if draws.hole_places is not None and draws.hole_counts is not None:
        x = cut(x, fixed_holes(draws.hole_places, draws.hole_counts, size))
    if draws.brightness is not None:
        x = _blend(x, x.new_zeros(1), draws.brightness)
    if draws.contrast is not None:
        x = _blend(x, _grey(x).mean(dim=(1, 2, 3), keepdim=True), draws.contrast)
    if draws.gain is not None and draws.offset is not None:
        x = gain_and_offset(x, draws.gain, draws.offset)
    if draws.saturation is not None:
        x = _blend(x, _grey(x), draws.saturation)
    if draws.hue is not None:
        x = _turn_hue(x, draws.hue)
    if draws.grey is not None:
        x = torch.where(draws.grey[:, None, None, None], _grey(x), x)
    return x.clamp(0, 1)


def _box(
    draws: Draws, width: Float[Tensor, " b"], height: Float[Tensor, " b"], size: int
) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"], Float[Tensor, " b"], Float[Tensor, " b"]]:
    """Return left, top, width and height of the crop."""
    if draws.area is None or draws.ratio is None:
        w = h = torch.full_like(width, size)
        left, top = (
            (draws.place[:, i] * (room - size + 1)).floor() for i, room in enumerate((width, height))
        )
        return left, top, w, h
    area = draws.area * (width * height)[:, None]
    w, h = (area * draws.ratio).sqrt(), (area / draws.ratio).sqrt()
    fits = (w <= width[:, None]) & (h <= height[:, None])
    place = torch.where(fits.any(dim=1, keepdim=True), draws.place, 0.5)
    # If no try fits, use the largest central crop of an allowed ratio.
    w = torch.cat([w, torch.minimum(width, height * RATIOS[1])[:, None]], dim=1)
    h = torch.cat([h, torch.minimum(height, width / RATIOS[0])[:, None]], dim=1)
    first = F.pad(fits.int(), (0, 1), value=1).argmax(dim=1, keepdim=True)
    w, h = w.gather(1, first).flatten(), h.gather(1, first).flatten()
    return place[:, 0] * (width - w), place[:, 1] * (height - h), w, h


def _filtered_crop(
    images: UInt8[Tensor, "b side side 3"],
    aspect: Float[Tensor, " b"],
    draws: Draws,
    size: int,
    resize: int,
    margin: int,
) -> Float[Tensor, "b 3 h w"]:
    """Return what ``_crop`` does, but crop and flip with an antialiasing filter, then rotate and shift the crop."""
    width, height = true_size(aspect, resize)
    left, top, w, h = _box(draws, width, height, size)
    to_x, to_y = images.shape[1] / width, images.shape[1] / height
    cropped = crop_and_flip(images, left * to_x, top * to_y, w * to_x, h * to_y, draws.flip, size)
    if draws.angle is None and draws.shift is None and not margin:
        return cropped / 255
    middle, unflipped = torch.full_like(draws.place, 0.5), torch.zeros_like(draws.flip)
    rest = replace(draws, place=middle, area=None, ratio=None, flip=unflipped)
    return _crop(cropped.permute(0, 2, 3, 1), torch.ones_like(aspect), rest, size, size, margin)


def _crop(
    images: Num[Tensor, "b side side 3"],
    aspect: Float[Tensor, " b"],
    draws: Draws,
    size: int,
    resize: int,
    margin: int,
) -> Float[Tensor, "b 3 h w"]:
    """Return the cropped, flipped, rotated and shifted images, with ``margin`` more pixels on each side.

    The source of an output pixel at (u, v) from the centre is found by undoing the changes in reverse order, around
    the centre of the crop: shift back, rotate back, mirror, scale to the crop, scale to the square.
    """
    side = images.shape[1]
    width, height = true_size(aspect, resize)
    left, top, w, h = (value[:, None, None] for value in _box(draws, width, height, size))
    to_x, to_y = (side / width)[:, None, None], (side / height)[:, None, None]
    mirror = torch.where(draws.flip, -1.0, 1.0)[:, None, None]
    centred = torch.arange(-margin, size + margin, device=images.device) + 0.5 - size / 2
    u, v = centred[None, None, :], centred[None, :, None]
    if draws.shift is not None:
        u, v = u - size * draws.shift[:, 0, None, None], v - size * draws.shift[:, 1, None, None]
    if draws.angle is not None:
        cos, sin = draws.angle.cos()[:, None, None], draws.angle.sin()[:, None, None]
        u, v = cos * u - sin * v, sin * u + cos * v
    x = (left + w / 2) * to_x + mirror * (w / size * to_x) * u
    y = (top + h / 2) * to_y + (h / size * to_y) * v
    # Reflect points outside the image at its border.
    x, y = ((side - (side - at.remainder(2 * side)).abs()).clamp(0.5, side - 0.5) for at in (x, y))
    points = torch.stack(torch.broadcast_tensors(x, y), dim=3)
    return _gather(images, points) if images.is_cuda else _sample(images, points, exact=side == resize)


def _sample(
    images: Num[Tensor, "b side side 3"], points: Float[Tensor, "b h w 2"], *, exact: bool
) -> Float[Tensor, "b 3 h w"]:
    """Interpolate the images at ``points``, in pixels from the upper left corner.

    With ``exact``, images are padded to a power of two, which makes the map from pixels to [-1, 1] exact.
    """
    side = images.shape[1]
    padded = 1 << (side - 1).bit_length() if exact else side
    x = images.float().permute(0, 3, 1, 2)
    if padded > side:
        x = F.pad(x, (0, padded - side, 0, padded - side))
    return F.grid_sample(x, points * 2 / padded - 1, align_corners=False) / 255


def _gather(
    images: Num[Tensor, "b side side 3"], points: Float[Tensor, "b h w 2"]
) -> Float[Tensor, "b 3 h w"]:
    """Interpolate as ``_sample`` does, with operations that compile to a faster kernel on a GPU.

    The three channels are gathered one by one and share the computed points.
    """
    count, side = images.shape[:2]
    low = (points - 0.5).floor()
    (right, down), (x, y) = (points - 0.5 - low).unbind(3), low.int().unbind(3)
    values = images.flatten()
    image = torch.arange(0, count * side, side, device=images.device, dtype=torch.int32)[:, None, None]

    def interpolate(row: Tensor, channel: int) -> Tensor:
        start = (image + row) * side
        left, other = (values[(start + at) * 3 + channel] for at in (x, (x + 1).clamp(max=side - 1)))
        return torch.lerp(left.float(), other.float(), right)

    below = (y + 1).clamp(max=side - 1)
    mixed = [torch.lerp(interpolate(y, channel), interpolate(below, channel), down) for channel in range(3)]
    dtype = DTYPES.get(images.device.type, torch.float32)
    return torch.stack([(channel / 255).to(dtype) for channel in mixed], dim=1)


def _box_blur(x: Float[Tensor, "b c tall wide"], box: Int64[Tensor, " b"]) -> Float[Tensor, "b c h w"]:
    """Return the mean of a box of side ``box`` around each pixel, except the outer ``REACH`` pixels."""
    if x.device.type != "cpu":
        return _blurred(x, box)
    which = (box > 1).nonzero().flatten()  # on a GPU this would wait for the device
    blurred = x[:, :, REACH:-REACH, REACH:-REACH].clone()
    blurred[which] = _blurred(x[which], box[which])
    return blurred


def _blurred(x: Float[Tensor, "b c tall wide"], box: Int64[Tensor, " b"]) -> Float[Tensor, "b c h w"]:
    for dim in (3, 2):
        length = x.shape[dim] - 2 * REACH
        total = blurred = x.narrow(dim, REACH, length)
        for r in range(1, REACH + 1):
            total = total + x.narrow(dim, REACH - r, length) + x.narrow(dim, REACH + r, length)
            blurred = torch.where(box[:, None, None, None] > 2 * r, total / (2 * r + 1), blurred)
        x = blurred
    return x


def gain_and_offset(
    x: Float[Tensor, "b c h w"], gain: Float[Tensor, " b"], offset: Float[Tensor, " b"]
) -> Float[Tensor, "b c h w"]:
    """Return gain * x + offset, clamped to [0, 1]: contrast and brightness as in albumentations.

    >>> gain_and_offset(torch.full((1, 1, 1, 1), 0.5), torch.tensor([1.2]), torch.tensor([-0.1])).item()
    0.5
    """
    gain, offset = (value[:, None, None, None].to(x.dtype) for value in (gain, offset))
    return (gain * x + offset).clamp(0, 1)


def _grey(x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 1 h w"]:
    r, g, b = x.split(1, dim=1)
    luma: Tensor = LUMA[0] * r + LUMA[1] * g + LUMA[2] * b
    return luma


def _blend(x: Tensor, other: Tensor, factor: Float[Tensor, " b"]) -> Tensor:
    """Return factor * x + (1 - factor) * other, clamped to [0, 1]."""
    return torch.lerp(other, x, factor[:, None, None, None].to(x.dtype)).clamp(0, 1)


def _turn_hue(x: Float[Tensor, "b 3 h w"], turn: Float[Tensor, " b"]) -> Float[Tensor, "b 3 h w"]:
    """Rotate the hue by ``turn`` of the colour circle. The largest and smallest channel values of a pixel stay."""
    r, g, b = x.unbind(dim=1)
    value, chroma = x.amax(dim=1), x.amax(dim=1) - x.amin(dim=1)
    safe = torch.where(chroma > 0, chroma, 1.0)
    hue = torch.where(
        value == r, (g - b) / safe, torch.where(value == g, 2 + (b - r) / safe, 4 + (r - g) / safe)
    )
    hue = hue + 6 * turn[:, None, None]
    steps = torch.stack([(hue + start).remainder(6) for start in (5, 3, 1)], dim=1)
    return value[:, None] - chroma[:, None] * torch.minimum(steps, 4 - steps).clamp(0, 1).to(x.dtype)
