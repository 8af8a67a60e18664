"""Image files that are decoded on every load."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from divconq.data.dataset import ImageStore, Subset
from divconq.data.images.decoding import UnreadableError, decode
from divconq.data.images.file_checks import SMALLEST_SIDE, first_three, map_files, refuse_unreadable
from divconq.data.images.sizes import upright_sizes

ONE_PIXEL = 0.999  # less than 1 for rounding


@dataclass(frozen=True)
class ImageFiles:
    """Image files, decoded by ``workers`` threads on every load.

    ``boxes`` holds the part of each image to show, as x1, y1, x2, y2 in pixels of the upright image; x2 and y2
    are exclusive.

    >>> ImageFiles((), torch.ones(0), size=8, workers=2).load(torch.arange(0)).shape
    torch.Size([0, 8, 8, 3])
    """

    files: tuple[Path, ...]
    aspect: Float[Tensor, " n"]
    size: int
    workers: int
    boxes: Float[Tensor, "n 4"] | None = None

    def load(self, index: Int64[Tensor, " b"]) -> UInt8[Tensor, "b size size 3"]:
        """Decode the images at ``index``, in that order."""
        rows = index.tolist()
        images = np.empty((len(rows), self.size, self.size, 3), dtype=np.uint8)

        def fill(i: int) -> None:
            box = None if self.boxes is None else tuple(self.boxes[rows[i]].tolist())
            images[i] = decode(self.files[rows[i]], self.size, box)

        with ThreadPoolExecutor(self.workers) as pool:
            list(pool.map(fill, range(len(rows))))
        return torch.from_numpy(images)


def open_files(
    splits: Sequence[Sequence[Path]],
    *,
    size: int,
    workers: int,
    boxes: Sequence[Float[Tensor, "_ 4"]] | None = None,
    rows: Sequence[Sequence[int]] | None = None,
) -> list[ImageFiles]:
    """Return the image files of each split. One error lists the unreadable files of all splits.

    ``rows`` holds the row of each image in its table, from 0, for the message about a wrong box.

    >>> open_files([[], []], size=8, workers=2)[1].files
    ()
    """
    files = [file for split in splits for file in split]
    once = {file: i for i, file in enumerate(dict.fromkeys(files))}
    sizes = upright_sizes(list(once), workers).float()[[once[file] for file in files]]
    if boxes is not None:
        all_boxes = torch.cat(list(boxes))
        names = [str(file) for file in files]
        if rows is not None:
            numbers = [row + 1 for split in rows for row in split]
            names = [f"{file} in row {row}" for file, row in zip(files, numbers, strict=True)]
        _check_boxes(names, sizes, all_boxes)
        sizes = all_boxes[:, 2:] - all_boxes[:, :2]
    aspects = (sizes[:, 0] / sizes[:, 1]).split([len(split) for split in splits])
    return [
        ImageFiles(tuple(split), aspects[i], size, workers, None if boxes is None else boxes[i])
        for i, split in enumerate(splits)
    ]


def check_readable(stores: Iterable[ImageStore]) -> None:
    """Decode every image file of ``stores`` once, and raise a ValueError if any is broken.

    Each file is decoded at the smallest size, which is faster for a JPEG and still reads all bytes. Stores without
    files are skipped.

    >>> check_readable([ImageFiles((), torch.ones(0), size=8, workers=2)])
    """
    opened = [store for store in map(_source, stores) if isinstance(store, ImageFiles)]
    files = list(dict.fromkeys(file for store in opened for file in store.files))
    if files:
        workers = max(store.workers for store in opened)
        refuse_unreadable(files, map_files(_unreadable_reason, files, workers, "checking"))


def _unreadable_reason(file: Path) -> str | None:
    try:
        decode(file, SMALLEST_SIDE)
    except UnreadableError as error:
        return error.reason
    return None


def _source(store: ImageStore) -> ImageStore:
    """Return the store that a subset is taken from."""
    return _source(store.source) if isinstance(store, Subset) else store


def _check_boxes(names: Sequence[str], sizes: Float[Tensor, "n 2"], boxes: Float[Tensor, "n 4"]) -> None:
    low, high = boxes[:, :2], boxes[:, 2:]
    good = ((low >= 0) & (high - low >= ONE_PIXEL) & (high <= sizes)).all(1)
    bad = (~good).nonzero().flatten().tolist()
    if bad:
        named = [
            f"{names[i]} ({', '.join(f'{value:g}' for value in boxes[i].tolist())} "
            f"in {sizes[i, 0]:g} x {sizes[i, 1]:g})"
            for i in bad
        ]
        raise ValueError(
            "every box x1, y1, x2, y2 must lie in its image and be at least one pixel wide and high, "
            f"got {len(bad)} of {len(names)} that do not: {first_three(named)}; correct them"
        )
