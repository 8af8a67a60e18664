"""A run with its images and embeddings, and the searches that several chapters share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from divconq.analysis.measures.nearest import neighbours
from divconq.analysis.run_record import RunRecord
from divconq.data.dataset import ImageSet

Split: TypeAlias = Literal["train", "test", "gallery"]

NEIGHBOURS = 10
ANSWERS = 5  # neighbours to show


@dataclass(frozen=True)
class ImageRef:
    """A reference to an image: split, index, class name and path, and its ``cluster`` if that is shown."""

    split: Split
    index: int
    label: str
    path: str
    cluster: int | None = None


@dataclass(frozen=True)
class Found:
    """An image that a query found, and whether it has the class of the query."""

    image: ImageRef
    right: bool


@dataclass(frozen=True)
class Subject:
    """A run to analyse: images by split, their embeddings f without masks, masks and clusters.

    ``clusters`` is None if the run divided other images than the current training images.
    """

    name: str
    record: RunRecord
    epoch: int
    images: Mapping[Split, ImageSet]
    f: Mapping[Split, Float[Tensor, "_ d"]]
    masks: Float[Tensor, "k d"]
    clusters: Int64[Tensor, " n"] | None

    @cached_property
    def final(self) -> Float[Tensor, " d"]:
        """Return the mask of the final space."""
        return self.record.final_mask(self.masks)

    @cached_property
    def x(self) -> dict[Split, Float[Tensor, "_ d"]]:
        """Return the embeddings of every split in the final space, normalize(f(x) * Σ_k relu(s_k))."""
        return {split: F.normalize(f * self.final) for split, f in self.f.items()}

    @cached_property
    def labels(self) -> dict[Split, Int64[Tensor, " _"]]:
        """Return the class labels of every split, on the device of the embeddings."""
        return {split: some.labels.to(self.masks.device) for split, some in self.images.items()}

    @property
    def searched(self) -> Split:
        """Return the split that the test images search: the gallery, or the test images themselves."""
        return "gallery" if "gallery" in self.images else "test"

    @cached_property
    def points(self) -> Float[Tensor, "p d"]:
        """Return the test images, then the gallery images, in the final space."""
        return torch.cat([x for split, x in self.x.items() if split != "train"])

    @cached_property
    def point_labels(self) -> Int64[Tensor, " p"]:
        """Return the class labels of the ``points``."""
        return torch.cat([labels for split, labels in self.labels.items() if split != "train"])

    @cached_property
    def near(self) -> Int64[Tensor, "p k"]:
        """Return the neighbours of each of the ``points`` among the others."""
        return neighbours(self.points, NEIGHBOURS)

    @cached_property
    def ranking(self) -> Int64[Tensor, "n k"]:
        """Return the neighbours of each test image in the ``searched`` split."""
        if self.searched == "test":
            return self.near
        return neighbours(self.x["test"], NEIGHBOURS, gallery=self.x["gallery"])

    def ref(self, split: Split, index: int, cluster: int | None = None) -> ImageRef:
        """Return a reference to an image."""
        images = self.images[split]
        return ImageRef(split, index, images.names[int(images.labels[index])], images.paths[index], cluster)

    def found(self, query: int, indices: Sequence[int]) -> tuple[Found, ...]:
        """Return references to the images that a test image found, each right or wrong."""
        label, theirs = self.images["test"].labels[query], self.images[self.searched].labels
        return tuple(Found(self.ref(self.searched, index), bool(theirs[index] == label)) for index in indices)

    def point_ref(self, index: int) -> ImageRef:
        """Return a reference to one of the ``points``."""
        tests = len(self.images["test"])
        return self.ref("test", index) if index < tests else self.ref("gallery", index - tests)

    def factors(self, split: Split) -> dict[str, Tensor]:
        """Return the known factors with one number for each image of a split."""
        known = self.images[split].factors
        return {name: values.cpu() for name, values in known.items() if values.ndim == 1}


def sample(n: int, most: int, seed: int) -> Int64[Tensor, " m"]:
    """Return at most ``most`` random numbers from 0 .. n-1, in ascending order.

    >>> sample(3, 5, seed=0).tolist(), len(sample(9, 5, seed=0))
    ([0, 1, 2], 5)
    """
    if n <= most:
        return torch.arange(n)
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:most].sort().values
