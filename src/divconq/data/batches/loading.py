"""From a plan of indices to batches on the device, made ahead of the network."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from divconq.data.batches.augmentation import Augmentation, draw
from divconq.data.batches.sampler import EpochPlan
from divconq.data.batches.transforms import augment
from divconq.data.dataset import ImageSet, InMemory, Pixels
from divconq.data.images.placement import Pinned
from divconq.distributed import shard


def read_ahead(pixels: Pixels, batches: Iterable[Tensor], device: torch.device) -> Iterator[Tensor]:
    """The images of one batch of indices after another on ``device``, the next being read in the background.

    Images that the device reaches by itself are not read but asked for.

    >>> store = InMemory(torch.zeros(4, 8, 8, 3, dtype=torch.uint8))
    >>> batches = [torch.tensor([0, 1]), torch.tensor([2])]
    >>> [len(images) for images in read_ahead(store, batches, torch.device("cpu"))]
    [2, 1]
    """
    if isinstance(pixels, Pinned) or index_device(pixels).type == "cuda":
        yield from map(pixels.load, batches)
        return

    def read(index: Tensor) -> Tensor:
        images = pixels.load(index)
        return images.pin_memory() if device.type == "cuda" else images

    with ThreadPoolExecutor(max_workers=1) as reader:
        coming = None
        for index in batches:
            following = reader.submit(read, index)
            if coming is not None:
                yield coming.result().to(device, non_blocking=True)
            coming = following
        if coming is not None:
            yield coming.result().to(device, non_blocking=True)


def index_device(pixels: Pixels) -> torch.device:
    """Where indices of these images should be, so that to load them waits for nothing.

    >>> index_device(InMemory(torch.zeros(4, 8, 8, 3, dtype=torch.uint8)))
    device(type='cpu')
    """
    return pixels.images.device if isinstance(pixels, InMemory) else torch.device("cpu")


def work_ahead(batches: Iterator[Tensor], device: torch.device) -> Iterator[Tensor]:
    """The same batches; on a GPU each is made while the one before is used.

    A stream of its own makes batch i + 1 once what used batch i - 1 is done, which is also when the memory of
    that one may be written again.

    >>> list(work_ahead(iter([torch.tensor(1)]), torch.device("cpu")))
    [tensor(1)]
    """
    if device.type != "cuda":
        yield from batches
        return
    using, making = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    making.wait_stream(using)
    used = [torch.cuda.Event(), torch.cuda.Event()]
    while True:
        with torch.cuda.stream(making):
            making.wait_event(used[0])
            batch = next(batches, None)
        if batch is None:
            return
        using.wait_stream(making)
        yield batch
        used[0].record(using)
        used.reverse()


def training_batches(
    images: ImageSet,
    plan: EpochPlan,
    changes: Augmentation,
    *,
    size: int,
    resize: int,
    seed: int,
    device: torch.device,
    view: Callable[..., Tensor] = augment,
    start: int = 0,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Augmented images, labels and cluster of each step of a plan; random numbers depend on ``seed`` alone.

    ``view`` makes the changes; another one must be as ``augment``. The steps before ``start`` are passed over:
    their random numbers are drawn, their images are not read. Of several processes each gets its share of the
    images, changed as if it were alone, and all labels. The plan is sent to the device at once, batches are made
    when they are asked for: called before an epoch begins, this leaves less to wait for when it does.
    """
    generator, batch = torch.Generator().manual_seed(seed), plan.indices.shape[1]
    for _ in range(start):
        draw(batch, changes, generator=generator)
    labels, clusters = images.labels[plan.indices].to(device), plan.clusters.to(device)
    own = shard(batch)
    aspect = images.pixels.aspect[plan.indices[:, own]].to(device)
    indices = plan.indices[:, own].to(index_device(images.pixels))

    def batches() -> Iterator[Tensor]:
        for step, pixels in enumerate(read_ahead(images.pixels, indices[start:], device), start):
            draws = draw(batch, changes, generator=generator).part(own).to(device)
            yield view(pixels, aspect[step], draws, size, resize)

    ahead = enumerate(work_ahead(batches(), device), start)
    return ((x, labels[step], clusters[step]) for step, x in ahead)
