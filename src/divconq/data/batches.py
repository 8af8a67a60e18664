"""From a plan of indices to batches on the device, reading ahead of the network."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from divconq.data.augmentation import Augmentation, draw
from divconq.data.protocol import ImageSet, Pixels
from divconq.data.sampler import EpochPlan
from divconq.data.transforms import augment


def read_ahead(pixels: Pixels, batches: Iterable[Tensor]) -> Iterator[Tensor]:
    """The images of one batch of indices after another, the next one being read in the background.

    >>> from divconq.data.protocol import InMemory
    >>> store = InMemory(torch.zeros(4, 8, 8, 3, dtype=torch.uint8))
    >>> [len(images) for images in read_ahead(store, [torch.tensor([0, 1]), torch.tensor([2])])]
    [2, 1]
    """
    with ThreadPoolExecutor(max_workers=1) as reader:
        coming = None
        for index in batches:
            following = reader.submit(pixels.load, index)
            if coming is not None:
                yield coming.result()
            coming = following
        if coming is not None:
            yield coming.result()


def training_batches(
    images: ImageSet,
    plan: EpochPlan,
    changes: Augmentation,
    *,
    size: int,
    resize: int,
    seed: int,
    device: torch.device,
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Cluster, augmented images and labels of each step of a plan; random numbers depend on ``seed`` alone."""
    generator = torch.Generator().manual_seed(seed)
    aspect = images.pixels.aspect
    for (cluster, index), pixels in zip(plan, read_ahead(images.pixels, plan.indices), strict=True):
        draws = draw(len(index), changes, generator=generator).to(device)
        x = augment(pixels.to(device), aspect[index].to(device), draws, size, resize)
        yield cluster, x, images.labels[index].to(device)
