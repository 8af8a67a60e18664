"""What a dataset is: labelled images of which some are to train on and others to search."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor


@runtime_checkable
class Pixels(Protocol):
    """Where images come from: each one squashed to a square of side ``size``.

    ``aspect`` keeps the true width / height, so that crops can be drawn in the true geometry.
    """

    @property
    def size(self) -> int:
        """The side of the square."""
        ...

    @property
    def aspect(self) -> Float[Tensor, " n"]:
        """True width / height of every image."""
        ...

    def load(self, index: Int64[Tensor, " b"]) -> UInt8[Tensor, "b size size 3"]:
        """The images at ``index``, in that order."""
        ...


@dataclass(frozen=True)
class InMemory:
    """Images that are already decoded: square as they are, or squashed if ``shape`` has their width / height.

    >>> InMemory(torch.zeros(4, 8, 8, 3, dtype=torch.uint8)).load(torch.tensor([2, 0])).shape
    torch.Size([2, 8, 8, 3])
    """

    images: UInt8[Tensor, "n size size 3"]
    shape: Float[Tensor, " n"] | None = None

    @property
    def size(self) -> int:
        """The side of the square."""
        return self.images.shape[1]

    @property
    def aspect(self) -> Float[Tensor, " n"]:
        """True width / height of every image."""
        return torch.ones(len(self.images)) if self.shape is None else self.shape

    def load(self, index: Int64[Tensor, " b"]) -> UInt8[Tensor, "b size size 3"]:
        """The images at ``index``, in that order."""
        return self.images[index]


@dataclass(frozen=True)
class ImageSet:
    """Images with a class each: labels are 0 .. C-1, ``names[label]`` says what they mean.

    ``groups`` are super-categories (for the division ``labels``), ``factors`` anything else that is known
    of each image, such as the generative factors of the built-in dataset, or its ``camera``.
    """

    pixels: Pixels
    labels: Int64[Tensor, " n"]
    names: tuple[str, ...]
    paths: tuple[str, ...]
    groups: Int64[Tensor, " n"] | None = None
    factors: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.labels) == 0:
            raise ValueError("an image set needs at least one image, got none")
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= len(self.names):
            raise ValueError(
                f"labels must be from 0 to {len(self.names) - 1}, as there are {len(self.names)} "
                f"class names, got {low} to {high}; renumber them with torch.unique(labels, return_inverse=True)"
            )

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Dataset:
    """What to train on and what to search; without a gallery the test images search each other.

    ``gallery_draws`` is how many random galleries of one test image per class are searched besides.
    """

    name: str
    train: ImageSet
    test: ImageSet
    gallery: ImageSet | None = None
    gallery_draws: int = 0


@dataclass(frozen=True)
class Chosen:
    """Some of the images of another store."""

    source: Pixels
    index: Int64[Tensor, " n"]

    @property
    def size(self) -> int:
        """The side of the square."""
        return self.source.size

    @property
    def aspect(self) -> Float[Tensor, " n"]:
        """True width / height of each chosen image."""
        return self.source.aspect[self.index]

    def load(self, index: Int64[Tensor, " b"]) -> UInt8[Tensor, "b size size 3"]:
        """The images at ``index`` among the chosen."""
        return self.source.load(self.index[index])


def subset(images: ImageSet, keep: Bool[Tensor, " n"]) -> ImageSet:
    """Only the images to ``keep``, their classes numbered anew from 0.

    >>> pixels = InMemory(torch.zeros(3, 8, 8, 3, dtype=torch.uint8))
    >>> three = ImageSet(pixels, torch.tensor([0, 1, 2]), ("a", "b", "c"), ("1", "2", "3"))
    >>> subset(three, three.labels != 1).names
    ('a', 'c')
    """
    index = keep.nonzero().flatten()
    if len(index) == 0:
        raise ValueError("no image is left; keep more classes")
    present, labels = images.labels[index].unique(return_inverse=True)
    return ImageSet(
        Chosen(images.pixels, index),
        labels,
        tuple(images.names[label] for label in present.tolist()),
        tuple(images.paths[position] for position in index.tolist()),
        None if images.groups is None else images.groups[index],
        {name: values[index] for name, values in images.factors.items()},
    )


def known_cameras(
    test: ImageSet, gallery: ImageSet | None = None
) -> tuple[Int64[Tensor, " n"], Int64[Tensor, " m"]] | None:
    """The cameras of the test images and of those they search, if both are known."""
    searched = test if gallery is None else gallery
    if "camera" not in test.factors or "camera" not in searched.factors:
        return None
    return test.factors["camera"], searched.factors["camera"]


def count_matches(
    test: ImageSet, gallery: ImageSet | None = None, *, same_camera: Literal["drop", "keep"] = "drop"
) -> Int64[Tensor, " n"]:
    """How many images of its class each test image has to find, in the gallery or among the others.

    Where cameras are known, those by its own camera do not count, unless they are to ``keep``.

    >>> pixels = InMemory(torch.zeros(3, 8, 8, 3, dtype=torch.uint8))
    >>> factors = {"camera": torch.tensor([5, 5, 6])}
    >>> three = ImageSet(pixels, torch.tensor([0, 0, 0]), ("a",), ("1", "2", "3"), factors=factors)
    >>> count_matches(three).tolist(), count_matches(three, same_camera="keep").tolist()
    ([1, 1, 2], [2, 2, 2])
    """
    searched = test if gallery is None else gallery
    matches = searched.labels.bincount(minlength=len(test.names))[test.labels]
    cameras = known_cameras(test, gallery)
    if cameras is None or same_camera == "keep":
        return matches - int(gallery is None)
    camera = torch.cat(cameras).unique(return_inverse=True)[1]
    pairs = torch.cat([test.labels, searched.labels]) * len(camera) + camera
    number = pairs.unique(return_inverse=True)[1]
    mine, theirs = number[: len(test)], number[len(test) :]
    dropped: Tensor = theirs.bincount(minlength=len(number))[mine]
    return matches - dropped
