"""Image files to train on: those of a dataset, or the demo images as JPEG files in photo size."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from divconq.data import Dataset, ImageSet, ImageStore, InMemory, open_dataset, subset
from divconq.data.dataset import Subset
from divconq.data.images.files import ImageFiles

WIDTH, HEIGHT = 500, 375  # of the JPEG files, like most of CUB


@contextmanager
def image_files(data: str, images: int | None, workers: int) -> Iterator[str]:
    """Yield the dataset to open: ``data`` itself, or for ``demo`` a temporary folder of JPEG files.

    The folder has the first ``images`` training images; the cache is inside it as well.
    """
    if data.partition(":")[0] != "demo":
        yield data
        return
    before = os.environ.get("DIVCONQ_CACHE")
    with TemporaryDirectory() as folder:
        write_photos(Path(folder, "photos"), open_dataset(data), images, workers)
        os.environ["DIVCONQ_CACHE"] = str(Path(folder, "cache"))
        try:
            yield str(Path(folder, "photos"))
        finally:
            del os.environ["DIVCONQ_CACHE"]
            if before is not None:
                os.environ["DIVCONQ_CACHE"] = before


def write_photos(folder: Path, data: Dataset, images: int | None, workers: int) -> None:
    """Write train/CLASS/NUMBER.jpg, and test/CLASS/NUMBER.jpg for two classes."""
    from PIL import Image

    def write(target: Path, images: ImageSet, i: int) -> None:
        file = target / f"{int(images.labels[i]):03d}" / f"{i:05d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = images.store.load(torch.tensor([i]))[0].numpy()
        Image.fromarray(pixels).resize((WIDTH, HEIGHT)).save(file, quality=90)

    test = subset(data.test, data.test.labels < 2)
    with ThreadPoolExecutor(workers) as pool:
        for split, chosen in (("train", first(data.train, images)), ("test", test)):
            list(pool.map(lambda i, s=split, c=chosen: write(folder / s, c, i), range(len(chosen))))


def first(images: ImageSet, count: int | None) -> ImageSet:
    """Return the first ``count`` images, or all.

    >>> len(first(open_dataset("demo").train, 64))
    64
    """
    return images if count is None else subset(images, torch.arange(len(images)) < count)


def in_memory(images: ImageSet, count: int | None) -> ImageSet:
    """Return the first ``count`` images, decoded in memory. If ``count`` covers all, return them unchanged."""
    if count is None or count >= len(images):
        return images
    index = torch.arange(count)
    held = InMemory(images.store.load(index), images.store.aspect[index])
    return replace(first(images, count), store=held)


def files_of(pixels: ImageStore) -> tuple[Path, ...]:
    """Return the files that images are decoded from.

    >>> files_of(ImageFiles((Path("1.jpg"),), torch.ones(1), size=8, workers=1))
    (PosixPath('1.jpg'),)
    """
    if isinstance(pixels, Subset):
        files = files_of(pixels.source)
        return tuple(files[i] for i in pixels.index.tolist())
    if not isinstance(pixels, ImageFiles):
        raise ValueError("the plain loop decodes image files, and this dataset has none; use --data FOLDER")
    return pixels.files
