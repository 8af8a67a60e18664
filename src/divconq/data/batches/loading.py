"""Load and augment batches on the device, ahead of the training step."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from divconq.data.batches.augmentation import Augmentation, draw
from divconq.data.batches.sampler import EpochPlan
from divconq.data.batches.transforms import augment
from divconq.data.dataset import ImageSet, ImageStore, InMemory
from divconq.data.images.placement import Pinned
from divconq.distributed import shard


def read_ahead(store: ImageStore, batches: Iterable[Tensor], device: torch.device) -> Iterator[Tensor]:
    """Yield the images of each batch of indices on ``device``, while a thread reads the next batch.

    Images in GPU memory or pinned memory need no thread.

    >>> store = InMemory(torch.zeros(4, 8, 8, 3, dtype=torch.uint8))
    >>> batches = [torch.tensor([0, 1]), torch.tensor([2])]
    >>> [len(images) for images in read_ahead(store, batches, torch.device("cpu"))]
    [2, 1]
    """
    if isinstance(store, Pinned) or index_device(store).type == "cuda":
        yield from map(store.load, batches)
        return

    def read(index: Tensor) -> Tensor:
        images = store.load(index)
        return images.pin_memory() if device.type == "cuda" else images

    with ThreadPoolExecutor(max_workers=1) as reader:
        current = None
        for index in batches:
            upcoming = reader.submit(read, index)
            if current is not None:
                yield current.result().to(device, non_blocking=True)
            current = upcoming
        if current is not None:
            yield current.result().to(device, non_blocking=True)


def index_device(store: ImageStore) -> torch.device:
    """Return the device that indices must be on to avoid a wait in ``store.load(index)``.

    >>> index_device(InMemory(torch.zeros(4, 8, 8, 3, dtype=torch.uint8)))
    device(type='cpu')
    """
    return store.images.device if isinstance(store, InMemory) else torch.device("cpu")


def work_ahead(batches: Iterator[Tensor], device: torch.device) -> Iterator[Tensor]:
    """Yield the same batches; on a GPU, each is computed while the previous one is in use.

    A second stream computes batch i + 1 when the work on batch i - 1 is done. From then on, the memory of batch
    i - 1 may be reused.

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
    """Return an iterator over the augmented images, labels and cluster of each step of a plan.

    Random numbers depend on ``seed`` only. ``view`` augments the images and has the signature of ``augment``.
    Steps before ``start`` are skipped: their random numbers are drawn, but their images are not loaded. With
    several processes, each gets its share of the images and all labels, and the augmented images are those of a
    single process. The call copies the plan to the device; call it before the epoch to save time.
    """
    generator, batch = torch.Generator().manual_seed(seed), plan.indices.shape[1]
    for _ in range(start):
        draw(batch, changes, generator=generator)
    labels, clusters = images.labels[plan.indices].to(device), plan.clusters.to(device)
    own = shard(batch)
    aspect = images.store.aspect[plan.indices[:, own]].to(device)
    indices = plan.indices[:, own].to(index_device(images.store))

    def batches() -> Iterator[Tensor]:
        for step, x in enumerate(read_ahead(images.store, indices[start:], device), start):
            draws = draw(batch, changes, generator=generator).part(own).to(device)
            yield view(x, aspect[step], draws, size, resize)

    ahead = enumerate(work_ahead(batches(), device), start)
    return ((x, labels[step], clusters[step]) for step, x in ahead)
