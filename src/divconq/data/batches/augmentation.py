"""Augmentations by name, and the random numbers that they need.

The numbers are drawn on the CPU, so they are the same on every device.
"""

import math
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from divconq.checks import did_you_mean

CROPS = ("random", "random_resized", "central")
RATIOS = (3 / 4, 4 / 3)  # width / height of a random_resized crop
TRIES = 10  # attempts to find a random_resized crop that fits into the image
ANGLE = math.radians(45)
SHIFT = 1 / 16  # of the side
BLURS = (3, 5, 7)
HOLES, HOLE = 5, 40 / 224  # largest number of holes, and their (largest) side as a share of the image side


@dataclass(frozen=True)
class Augmentation:
    """Probability of each change, and the kind of crop.

    ``strength`` holds the ranges of the jitter: brightness, contrast and saturation are multiplied by 1 ± s, the
    hue turns by ± s of the colour circle.

    Three fields make the changes as albumentations does, for the augmentations of the paper's authors. ``together``:
    rotation and shift have one coin, that of ``rotate``. ``fixed_holes``: all holes have the largest side.
    ``added_brightness``: contrast multiplies the pixels themselves by 1 ± s, not their distance to the mean, and
    brightness adds ± s to them.

    >>> Augmentation(flip=0.5, crop="random_resized", crop_scale=(0.2, 1.0)).rotate
    0.0
    """

    flip: float = 0.0
    rotate: float = 0.0
    shift: float = 0.0
    blur: float = 0.0
    cutout: float = 0.0
    jitter: float = 0.0
    strength: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    grey: float = 0.0
    crop: str = "random"
    crop_scale: tuple[float, float] = (0.08, 1.0)
    together: bool = False
    fixed_holes: bool = False
    added_brightness: bool = False

    def __post_init__(self) -> None:
        for name in ("flip", "rotate", "shift", "blur", "cutout", "jitter", "grey"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be a probability from 0 to 1, got {getattr(self, name)}")
        if self.together and self.rotate != self.shift:
            raise ValueError(
                f"rotate and shift must be equal when they happen together, got {self.rotate} and {self.shift}; "
                "use one probability, or together=False"
            )
        if self.crop not in CROPS:
            raise ValueError(f"crop must be one of {', '.join(CROPS)}, got {self.crop!r}")
        least, largest = self.crop_scale
        if not 0 < least <= largest <= 1:
            raise ValueError(
                f"crop_scale must be the least and largest share of the image, with 0 < least <= largest <= 1, "
                f"got {self.crop_scale}; use (0.08, 1.0)"
            )


_STANDARD = Augmentation(flip=0.5)
_GEOM = replace(_STANDARD, rotate=0.5, shift=0.5, blur=0.5, cutout=0.5)
_GEOM_AUTHORS = replace(_GEOM, together=True, fixed_holes=True, added_brightness=True)

AUGMENTATIONS = {
    "none": Augmentation(crop="central"),
    "crop": Augmentation(),
    "standard": _STANDARD,
    "geom": _GEOM,
    "geom+color": replace(_GEOM, jitter=0.5, strength=(0.2, 0.2, 0.0, 0.0)),
    "color-heavy": replace(_STANDARD, jitter=0.8, strength=(0.4, 0.4, 0.4, 0.1), grey=0.2),
    # rotation and shift with one coin, holes of 40 x 40 pixels in 224; then also brightness that is added
    "geom-authors": _GEOM_AUTHORS,
    "geom+color-authors": replace(_GEOM_AUTHORS, jitter=0.5, strength=(0.2, 0.2, 0.0, 0.0)),
}


def make_augmentation(
    name: str, crop: str = "random", crop_scale: tuple[float, float] = (0.08, 1.0)
) -> Augmentation:
    """Return one of ``AUGMENTATIONS`` with this crop; ``none`` always has the central crop.

    >>> make_augmentation("standard", crop="random_resized").crop
    'random_resized'
    """
    if name not in AUGMENTATIONS:
        hint = did_you_mean(name, AUGMENTATIONS)
        raise ValueError(f"augmentation must be one of {', '.join(AUGMENTATIONS)}, got {name!r}{hint}")
    found = replace(AUGMENTATIONS[name], crop=crop, crop_scale=crop_scale)
    return replace(found, crop="central") if name == "none" else found


@dataclass(frozen=True)
class Draws:
    """The random numbers of a batch; None for a change that the augmentation never makes.

    ``place`` is the position of the crop, from 0 to 1 in the free space. ``area`` (a share of the image) and
    ``ratio`` are for the attempts at a random_resized crop. ``shift`` and ``holes`` (left, top, right, bottom) are
    shares of the output side. ``blur`` is the side of the box in pixels; 1 means no blur. ``hole_places`` are the
    positions of holes of fixed side, from 0 to 1 in the free space; an image has the first ``hole_counts``. ``gain``
    and ``offset`` are contrast and added brightness.

    >>> draw(2, AUGMENTATIONS["none"], generator=torch.Generator()).blur is None
    True
    """

    place: Float[Tensor, "n 2"]
    area: Float[Tensor, "n tries"] | None
    ratio: Float[Tensor, "n tries"] | None
    flip: Bool[Tensor, " n"]
    angle: Float[Tensor, " n"] | None
    shift: Float[Tensor, "n 2"] | None
    blur: Int64[Tensor, " n"] | None
    holes: Float[Tensor, "n holes 4"] | None
    brightness: Float[Tensor, " n"] | None
    contrast: Float[Tensor, " n"] | None
    saturation: Float[Tensor, " n"] | None
    hue: Float[Tensor, " n"] | None
    grey: Bool[Tensor, " n"] | None
    hole_places: Float[Tensor, "n holes 2"] | None = None
    hole_counts: Int64[Tensor, " n"] | None = None
    gain: Float[Tensor, " n"] | None = None
    offset: Float[Tensor, " n"] | None = None

    def part(self, rows: slice) -> "Draws":
        """Return the numbers of some of the images.

        >>> len(draw(9, AUGMENTATIONS["none"], generator=torch.Generator()).part(slice(4, 6)).flip)
        2
        """
        return replace(self, **{name: x[rows] for name, x in self._given().items()})

    def to(self, device: torch.device | str) -> "Draws":
        """Return a copy on another device, without waiting for it."""
        given = self._given()
        if torch.device(device).type == "cuda":
            given = {name: x.pin_memory() for name, x in given.items()}
        return replace(self, **{name: x.to(device, non_blocking=True) for name, x in given.items()})

    def _given(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: x for name, x in values.items() if x is not None}


def draw(n: int, augmentation: Augmentation, *, generator: torch.Generator) -> Draws:
    """Return the random numbers of ``n`` images, drawn on the CPU.

    >>> draw(3, AUGMENTATIONS["geom"], generator=torch.Generator().manual_seed(0)).angle.shape
    torch.Size([3])
    """

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(n, *shape, generator=generator)

    def happens(probability: float) -> Tensor:
        return torch.rand(n, generator=generator) < probability

    a = augmentation
    resized, central = a.crop == "random_resized", a.crop == "central"
    jittered = happens(a.jitter)
    brightness, contrast, saturation, hue = (
        torch.where(jittered, uniform(middle - s, middle + s), middle) if a.jitter and s else None
        for s, middle in zip(a.strength, (0.0 if a.added_brightness else 1.0, 1.0, 1.0, 0.0), strict=True)
    )
    gain = offset = hole_places = hole_counts = None
    if a.added_brightness:
        offset = torch.zeros(n) if brightness is None and contrast is not None else brightness
        gain = torch.ones(n) if contrast is None and brightness is not None else contrast
        brightness = contrast = None
    place = torch.full((n, 2), 0.5) if central else uniform(0, 1, 2)
    area = uniform(*a.crop_scale, TRIES) if resized else None
    ratio = uniform(math.log(RATIOS[0]), math.log(RATIOS[1]), TRIES).exp() if resized else None
    flip = happens(a.flip)
    turned = happens(a.rotate)
    angle = turned * uniform(-ANGLE, ANGLE)
    moved = turned if a.together else happens(a.shift)
    shift = moved[:, None] * uniform(-SHIFT, SHIFT, 2)
    free_holes = bool(a.cutout) and not a.fixed_holes
    if a.cutout and a.fixed_holes:
        hole_counts = happens(a.cutout) * (1 + (uniform(0, 1) * HOLES).long())
        hole_places = uniform(0, 1, HOLES, 2)
    return Draws(
        place=place,
        area=area,
        ratio=ratio,
        flip=flip,
        angle=angle if a.rotate else None,
        shift=shift if a.shift else None,
        blur=torch.where(happens(a.blur), _choose(BLURS, uniform(0, 1)), 1) if a.blur else None,
        holes=_holes(happens(a.cutout), uniform(0, 1, 1 + 4 * HOLES)) if free_holes else None,
        brightness=brightness,
        contrast=contrast,
        saturation=saturation,
        hue=hue,
        grey=happens(a.grey) if a.grey else None,
        hole_places=hole_places,
        hole_counts=hole_counts,
        gain=gain,
        offset=offset,
    )


def _choose(values: tuple[int, ...], u: Float[Tensor, " n"]) -> Int64[Tensor, " n"]:
    return torch.tensor(values)[(u * len(values)).long()]


def _holes(on: Bool[Tensor, " n"], u: Float[Tensor, "n numbers"]) -> Float[Tensor, "n holes 4"]:
    """Return 1 to ``HOLES`` holes for each image that is ``on``; the other holes have no area."""
    count = 1 + (u[:, :1] * HOLES).long()
    present = on[:, None] & (torch.arange(HOLES) < count)
    position, side = u[:, 1:].reshape(-1, HOLES, 2, 2).unbind(dim=2)
    side = side * HOLE * present[:, :, None]
    corner = position * (1 - side)
    return torch.cat([corner, corner + side], dim=2)
