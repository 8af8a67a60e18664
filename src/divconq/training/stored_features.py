"""A store of features in place of images, for runs that train only the head."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from divconq.data import ImageSet
from divconq.data.batches.sampler import EpochPlan
from divconq.distributed import shard


@dataclass(frozen=True)
class StoredFeatures:
    """The output of a frozen backbone for every image of a set, on the device of the training.

    It takes the place of an ``ImageStore``: ``load`` returns features, one row for each image.

    >>> StoredFeatures(torch.eye(3)).load(torch.tensor([2, 0]))
    tensor([[0., 0., 1.],
            [1., 0., 0.]])
    """

    features: Float[Tensor, "n c"]

    @property
    def size(self) -> int:
        """Return the number of features of an image."""
        return self.features.shape[1]

    @property
    def aspect(self) -> Float[Tensor, " n"]:
        """Return ones, because features have no shape."""
        return torch.ones(len(self.features))

    def load(self, index: Int64[Tensor, " b"]) -> Float[Tensor, "b c"]:
        """Return the features of the images at ``index``, in that order."""
        return self.features[index]


def feature_batches(
    images: ImageSet, plan: EpochPlan, *, device: torch.device, start: int = 0
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Return an iterator over the features, labels and cluster of each step of a plan, from step ``start`` on.

    With several processes, each gets its share of the features and all labels.
    """
    own = shard(plan.indices.shape[1])
    indices = plan.indices[start:, own].to(device)
    labels, clusters = images.labels[plan.indices[start:]].to(device), plan.clusters[start:].to(device)
    return zip(map(images.store.load, indices), labels, clusters, strict=True)
