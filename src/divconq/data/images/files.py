"""Image files: their sizes read from the headers at once, their pixels decoded when they are needed."""

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor
from tqdm import tqdm

from divconq.data.dataset import Chosen, Pixels
from divconq.data.images.decoding import UnreadableError, decode, exif_orientation, open_image
from divconq.data.images.fingerprints import cache_folder, for_each, stamp
from divconq.data.images.workers import work_on
from divconq.io.atomic import write_atomically

Result = TypeVar("Result")

SIDE = 8  # pixels of the smallest square, which is decoded the fastest
UNKNOWN = (1 << 30, 1 << 30)  # stands for the size of a broken file: a square in which every box lies

_keep_broken: ContextVar[bool] = ContextVar("keep_broken", default=False)


@dataclass(frozen=True)
class Decoded:
    """Image files, decoded by ``workers`` threads whenever they are asked for.

    ``boxes`` hold x1, y1, x2, y2 of the part to see: pixels of the upright image, x2 and y2 just outside.

    >>> Decoded((), torch.ones(0), size=8, workers=2).load(torch.arange(0)).shape
    torch.Size([0, 8, 8, 3])
    """

    files: tuple[Path, ...]
    aspect: Float[Tensor, " n"]
    size: int
    workers: int
    boxes: Float[Tensor, "n 4"] | None = None

    def load(self, index: Int64[Tensor, " b"]) -> UInt8[Tensor, "b size size 3"]:
        """Decode the images at ``index``, in that order."""
        chosen = index.tolist()
        images = np.empty((len(chosen), self.size, self.size, 3), dtype=np.uint8)

        def fill(i: int) -> None:
            box = None if self.boxes is None else tuple(self.boxes[chosen[i]].tolist())
            images[i] = decode(self.files[chosen[i]], self.size, box)

        with ThreadPoolExecutor(self.workers) as pool:
            list(pool.map(fill, range(len(chosen))))
        return torch.from_numpy(images)


def open_files(
    parts: Sequence[Sequence[Path]],
    *,
    size: int,
    workers: int,
    boxes: Sequence[Float[Tensor, "_ 4"]] | None = None,
) -> list[Decoded]:
    """Open the files of each part; what is wrong in any of them is told once, for all parts.

    >>> open_files([[], []], size=8, workers=2)[1].files
    ()
    """
    files = [file for part in parts for file in part]
    seen = upright_sizes(files, workers).float()
    if boxes is not None:
        every_box = torch.cat(list(boxes))
        _check_boxes(files, seen, every_box)
        seen = every_box[:, 2:] - every_box[:, :2]
    lengths = [len(part) for part in parts]
    aspects = (seen[:, 0] / seen[:, 1]).split(lengths)
    return [
        Decoded(tuple(part), aspects[i], size, workers, None if boxes is None else boxes[i])
        for i, part in enumerate(parts)
    ]


@contextmanager
def broken_files_kept() -> Iterator[None]:
    """Open files whose header cannot be read too, as if they were square: to look at them, not to train.

    >>> with broken_files_kept():
    ...     open_files([[Path("nowhere.jpg")]], size=8, workers=1)[0].aspect
    tensor([1.])
    """
    token = _keep_broken.set(True)
    try:
        yield
    finally:
        _keep_broken.reset(token)


def upright_sizes(files: Sequence[Path], workers: int) -> Int64[Tensor, "n 2"]:
    """Width and height, as seen upright, of each file.

    They are read from the headers, and remembered in the cache's folder for as long as no file changes.

    >>> upright_sizes([], workers=2).shape
    torch.Size([0, 2])
    """
    key = hashlib.sha256(" ".join(for_each(stamp, files, workers)).encode()).hexdigest()
    memory = cache_folder() / f"{key}.sizes"
    with suppress(OSError, ValueError):
        return torch.from_numpy(np.fromfile(memory, np.int64).reshape(len(files), 2))
    sizes = _read_sizes(files, workers)
    if not (sizes == UNKNOWN[0]).any():
        with suppress(OSError):  # a disk that is full, or may not be written to
            memory.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(memory, sizes.numpy().tofile)
    return sizes


def _read_sizes(files: Sequence[Path], workers: int) -> Int64[Tensor, "n 2"]:
    from PIL import Image

    Image.init()  # before there are threads or processes

    def upright_size(file: Path) -> tuple[int, int] | str:
        try:
            with open_image(file) as image:
                width, height = image.size
                return (height, width) if exif_orientation(image) >= 5 else (width, height)
        except UnreadableError as error:
            return error.reason

    sizes = list(work_on(upright_size, files, workers))
    if not _keep_broken.get():
        refuse_unreadable(files, [size if isinstance(size, str) else None for size in sizes])
    known = [UNKNOWN if isinstance(size, str) else size for size in sizes]
    return torch.tensor(known, dtype=torch.int64).reshape(-1, 2)


def check_readable(stores: Iterable[Pixels]) -> None:
    """Decode every image file of ``stores`` once, as small as can be, so that none is met broken later.

    A reduced JPEG takes a fraction of the time, yet all of its bytes are read. Images that are not decoded
    from files need no check.

    >>> check_readable([Decoded((), torch.ones(0), size=8, workers=2)])
    """
    opened = [store for store in map(_whole, stores) if isinstance(store, Decoded)]
    files = list(dict.fromkeys(file for store in opened for file in store.files))
    if not files:
        return

    def trouble(file: Path) -> str | None:
        try:
            decode(file, SIDE)
        except UnreadableError as error:
            return error.reason
        return None

    workers = max(store.workers for store in opened)
    refuse_unreadable(files, read_each(trouble, files, workers, "checking"))


def read_each(
    work: Callable[[Path], Result], files: Sequence[Path], workers: int, title: str
) -> list[Result]:
    """Do the work for each file, below a progress bar.

    >>> read_each(lambda file: file.suffix, [Path("1.jpg"), Path("2.png")], 2, "looking")
    ['.jpg', '.png']
    """
    from PIL import Image

    Image.init()  # before there are threads or processes
    return list(
        tqdm(
            work_on(work, files, workers),
            desc=title,
            total=len(files),
            unit=" files",
            file=sys.stderr,
            dynamic_ncols=True,
            disable=None,
        )
    )


def _whole(pixels: Pixels) -> Pixels:
    """The store that the images were chosen from."""
    return _whole(pixels.source) if isinstance(pixels, Chosen) else pixels


def refuse_unreadable(files: Sequence[Path], trouble: Sequence[str | None], *, add: str = "") -> None:
    """Refuse files that there is trouble with, if any; ``add`` goes to the end of the sentence.

    >>> refuse_unreadable([Path("1.jpg"), Path("2.jpg")], [None, "truncated"])
    Traceback (most recent call last):
    ValueError: every image must be readable, got 1 of 2 that are not: 2.jpg (truncated); remove them or save ...
    """
    broken = [f"{file} ({reason})" for file, reason in zip(files, trouble, strict=True) if reason is not None]
    if broken:
        raise ValueError(
            f"every image must be readable, got {len(broken)} of {len(files)} that are not: "
            f"{first_three(broken)}; remove them or save them again as JPEG or PNG{add}"
        )


def absent(files: Sequence[Path], workers: int) -> list[Path]:
    """The files that are not there.

    >>> absent([Path("nowhere.jpg")], workers=1)[0].name
    'nowhere.jpg'
    """
    there = for_each(Path.is_file, files, workers)
    return [file for file, found in zip(files, there, strict=True) if not found]


def first_three(names: Sequence[object]) -> str:
    """Name the first three, and say how many more there are.

    >>> first_three("abcde")
    'a, b, c and 2 more'
    """
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(str(name) for name in names[:3]) + more


def _check_boxes(files: Sequence[Path], sizes: Float[Tensor, "n 2"], boxes: Float[Tensor, "n 4"]) -> None:
    low, high = boxes[:, :2], boxes[:, 2:]
    good = ((low >= 0) & (low < high) & (high <= sizes)).all(1)
    bad = (~good).nonzero().flatten().tolist()
    if bad:
        named = [
            f"{files[i]} ({', '.join(f'{value:g}' for value in boxes[i].tolist())} "
            f"in {sizes[i, 0]:g} x {sizes[i, 1]:g})"
            for i in bad
        ]
        raise ValueError(
            "every box x1, y1, x2, y2 must lie in its image and not be empty, "
            f"got {len(bad)} of {len(files)} that do not: {first_three(named)}; correct them"
        )
