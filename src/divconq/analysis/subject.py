"""A run with its images and their embeddings, and the searches that several chapters of a study share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from divconq.analysis.findings import Found, Shown, Split
from divconq.analysis.nearest import neighbours
from divconq.analysis.runs import RunRecord
from divconq.data.dataset import ImageSet

NEIGHBOURS = 10
ANSWERS = 5  # images found that are shown


@dataclass(frozen=True)
class Subject:
    """One run to look at: its images by split, their embeddings f without masks, masks and clusters.

    ``clusters`` is None where the run divided other images than those that are there now.
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
        """The mask of the final space: the sum of the masks, or ones."""
        plain = self.record.config.masks.conquer == "plain"
        return torch.ones_like(self.masks[0]) if plain else self.masks.sum(0)

    @cached_property
    def x(self) -> dict[Split, Float[Tensor, "_ d"]]:
        """Every split in the final space, normalize(f(x) * Σ_k relu(s_k))."""
        return {split: F.normalize(f * self.final) for split, f in self.f.items()}

    @cached_property
    def labels(self) -> dict[Split, Int64[Tensor, " _"]]:
        """The classes of every split, where the embeddings are."""
        return {split: some.labels.to(self.masks.device) for split, some in self.images.items()}

    @property
    def searched(self) -> Split:
        """What the test images search: the gallery, or each other."""
        return "gallery" if "gallery" in self.images else "test"

    @cached_property
    def points(self) -> Float[Tensor, "p d"]:
        """All that is not to train on, in the final space: test images, then the gallery."""
        return torch.cat([x for split, x in self.x.items() if split != "train"])

    @cached_property
    def point_labels(self) -> Int64[Tensor, " p"]:
        """Their classes."""
        return torch.cat([labels for split, labels in self.labels.items() if split != "train"])

    @cached_property
    def near(self) -> Int64[Tensor, "p k"]:
        """The neighbours of each of the points among the others."""
        return neighbours(self.points, NEIGHBOURS)

    @cached_property
    def ranking(self) -> Int64[Tensor, "n k"]:
        """What each test image finds first in what it searches."""
        if self.searched == "test":
            return self.near
        return neighbours(self.x["test"], NEIGHBOURS, gallery=self.x["gallery"])

    def show(self, split: Split, index: int, cluster: int | None = None) -> Shown:
        """Name an image."""
        images = self.images[split]
        return Shown(split, index, images.names[int(images.labels[index])], images.paths[index], cluster)

    def found(self, query: int, indices: Sequence[int]) -> tuple[Found, ...]:
        """Name what a test image has found, right or wrong."""
        label, theirs = self.images["test"].labels[query], self.images[self.searched].labels
        return tuple(
            Found(self.show(self.searched, index), bool(theirs[index] == label)) for index in indices
        )

    def show_point(self, index: int) -> Shown:
        """Name one of the ``points``."""
        tests = len(self.images["test"])
        return self.show("test", index) if index < tests else self.show("gallery", index - tests)


def sample(n: int, most: int, seed: int) -> Int64[Tensor, " m"]:
    """At most ``most`` of the numbers 0 .. n-1, drawn by ``seed``, in order.

    >>> sample(3, 5, seed=0).tolist(), len(sample(9, 5, seed=0))
    ([0, 1, 2], 5)
    """
    if n <= most:
        return torch.arange(n)
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:most].sort().values
