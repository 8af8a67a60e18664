"""A memory of past embeddings (XBM), with which every batch is compared as well."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from divconq.checks import SettingError
from divconq.losses.pairwise import EMPTY


class Memory(nn.Module):
    """The embeddings f and the labels of the latest ``size`` images, in a ring.

    It holds the raw f, before mask and normalisation, so that a batch sees the images of all clusters in its own
    subspace. An entry keeps the f of the step that stored it. Places without an image have the label ``EMPTY``.
    Wang et al., Cross-Batch Memory for Embedding Learning, 2020.

    >>> memory = Memory(size=3, dim=2)
    >>> for label in (4, 5):
    ...     memory.store(torch.full((2, 2), float(label)), torch.tensor([label, label]))
    >>> memory.labels.tolist(), memory.f[0].tolist()
    ([5, 4, 5], [5.0, 5.0])
    """

    f: Tensor
    labels: Tensor
    place: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("f", torch.zeros(size, dim))
        self.register_buffer("labels", torch.full((size,), EMPTY))
        self.register_buffer("place", torch.zeros((), dtype=torch.int64))  # of the next entry

    @torch.no_grad()
    def store(self, f: Float[Tensor, "n d"], labels: Int64[Tensor, " n"]) -> None:
        """Store a batch over the oldest entries; of a batch larger than the memory, its last images."""
        size = len(self.labels)
        f, labels = f[-size:].to(self.f.dtype), labels[-size:]
        places = (self.place + torch.arange(len(labels), device=labels.device)) % size
        self.f.index_copy_(0, places, f)
        self.labels.index_copy_(0, places, labels)
        self.place.add_(len(labels)).remainder_(size)


def check_memory(size: int, images: int) -> None:
    """Raise SettingError if a memory is larger than the number of training images.

    >>> check_memory(100, images=48)
    Traceback (most recent call last):
    divconq.checks.SettingError: memory must be at most 48, the number of training images, got 100; lower --memory
    """
    if size > images:
        raise SettingError(
            f"memory must be at most {images}, the number of training images, got {size}; lower --memory"
        )
