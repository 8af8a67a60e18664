"""Labelled images, split into a training set and a test set."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor


@runtime_checkable
class ImageStore(Protocol):
    """A source of images. Each image is resized to a square; ``aspect`` holds its original width / height."""

    @property
    def size(self) -> int:
        """Return the side of the square in pixels."""
        ...

    @property
    def aspect(self) -> Float[Tensor, " n"]:
        """Return the original width / height of each image."""
        ...

    def load(self, index: Int64[Tensor, " b"]) -> UInt8[Tensor, "b size size 3"]:
        """Return the images at ``index``, in that order."""
        ...


@dataclass(frozen=True)
class InMemory:
    """Images as one tensor. ``shape`` is the original width / height of each image; by default 1.

    ``marks`` identify the images. Without them, their pixels do.

    >>> InMemory(torch.zeros(4, 8, 8, 3, dtype=torch.uint8)).load(torch.tensor([2, 0])).shape
    torch.Size([2, 8, 8, 3])
    """

    images: UInt8[Tensor, "n size size 3"]
    shape: Float[Tensor, " n"] | None = None
    marks: tuple[str, ...] | None = None

    @property
    def size(self) -> int:
        """Return the side of the square in pixels."""
        return self.images.shape[1]

    @property
    def aspect(self) -> Float[Tensor, " n"]:
        """Return the original width / height of each image."""
        return torch.ones(len(self.images)) if self.shape is None else self.shape

    def load(self, index: Int64[Tensor, " b"]) -> UInt8[Tensor, "b size size 3"]:
        """Return the images at ``index``, in that order."""
        return self.images[index]


@dataclass(frozen=True)
class Subset:
    """The images at ``index`` of another store."""

    source: ImageStore
    index: Int64[Tensor, " n"]

    @property
    def size(self) -> int:
        """Return the side of the square in pixels."""
        return self.source.size

    @property
    def aspect(self) -> Float[Tensor, " n"]:
        """Return the original width / height of each image."""
        return self.source.aspect[self.index]

    def load(self, index: Int64[Tensor, " b"]) -> UInt8[Tensor, "b size size 3"]:
        """Return the images at ``index`` of the subset, in that order."""
        return self.source.load(self.index[index])


def source_rows(store: ImageStore) -> tuple[ImageStore, Int64[Tensor, " n"]]:
    """Return the store that a subset is taken from, and the rows of the images in it.

    >>> store = InMemory(torch.zeros(3, 8, 8, 3, dtype=torch.uint8))
    >>> source_rows(Subset(Subset(store, torch.tensor([2, 0])), torch.tensor([1])))[1].tolist()
    [0]
    """
    rows = torch.arange(len(store.aspect))
    while isinstance(store, Subset):
        rows, store = store.index.cpu()[rows], store.source
    return store, rows


@dataclass(frozen=True)
class ImageSet:
    """Images with class labels from 0 to C-1; ``names[label]`` is the name of a class.

    ``groups`` holds the super-category of each image (for the division ``labels``). ``factors`` holds further
    values per image, such as its ``camera`` or the generative factors of the demo dataset.
    """

    store: ImageStore
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
    """A training set and a test set. Without a gallery, each test image searches the other test images.

    ``gallery_draws`` is the number of random galleries, with one test image per class, to evaluate in addition.
    """

    name: str
    train: ImageSet
    test: ImageSet
    gallery: ImageSet | None = None
    gallery_draws: int = 0


def subset(images: ImageSet, keep: Bool[Tensor, " n"]) -> ImageSet:
    """Return the images where ``keep`` is true, with labels renumbered from 0.

    >>> store = InMemory(torch.zeros(3, 8, 8, 3, dtype=torch.uint8))
    >>> three = ImageSet(store, torch.tensor([0, 1, 2]), ("a", "b", "c"), ("1", "2", "3"))
    >>> subset(three, three.labels != 1).names
    ('a', 'c')
    """
    index = keep.nonzero().flatten()
    if len(index) == 0:
        raise ValueError("no image is left; keep more classes")
    present, labels = images.labels[index].unique(return_inverse=True)
    return ImageSet(
        Subset(images.store, index),
        labels,
        tuple(images.names[label] for label in present.tolist()),
        tuple(images.paths[position] for position in index.tolist()),
        None if images.groups is None else images.groups[index],
        {name: values[index] for name, values in images.factors.items()},
    )


def label_fingerprint(images: ImageSet) -> str:
    """Return a hash of the labels and class names.

    >>> store = InMemory(torch.zeros(3, 8, 8, 3, dtype=torch.uint8))
    >>> len(label_fingerprint(ImageSet(store, torch.tensor([0, 1, 1]), ("a", "b"), ("1", "2", "3"))))
    64
    """
    names = "\n".join(images.names).encode()
    return hashlib.sha256(images.labels.cpu().numpy().tobytes() + names).hexdigest()


def known_cameras(
    test: ImageSet, gallery: ImageSet | None = None
) -> tuple[Int64[Tensor, " n"], Int64[Tensor, " m"]] | None:
    """Return the cameras of the test images and of the searched images, or None if either is unknown."""
    searched = test if gallery is None else gallery
    if "camera" not in test.factors or "camera" not in searched.factors:
        return None
    return test.factors["camera"], searched.factors["camera"]


def count_matches(
    test: ImageSet, gallery: ImageSet | None = None, *, same_camera: Literal["drop", "keep"] = "drop"
) -> Int64[Tensor, " n"]:
    """Return the number of correct results for each test image: images of its class in the gallery or test set.

    If cameras are known, images from the camera of the test image do not count, unless ``same_camera`` is "keep".

    >>> store = InMemory(torch.zeros(3, 8, 8, 3, dtype=torch.uint8))
    >>> factors = {"camera": torch.tensor([5, 5, 6])}
    >>> three = ImageSet(store, torch.tensor([0, 0, 0]), ("a",), ("1", "2", "3"), factors=factors)
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
    own, others = number[: len(test)], number[len(test) :]
    dropped: Tensor = others.bincount(minlength=len(number))[own]
    return matches - dropped
