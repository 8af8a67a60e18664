"""Width and height of image files, read from their headers and cached."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from divconq.data.images.decoding import UnreadableError, open_image, prepare_pillow, upright_size
from divconq.data.images.file_checks import refuse_unreadable
from divconq.data.images.fingerprints import cache_folder, fingerprint
from divconq.data.images.workers import map_in_threads, parallel_map
from divconq.io.atomic import write_atomically

FORMAT = 2  # increase this number when other sizes are read
UNKNOWN = (1 << 30, 1 << 30)  # size given to a broken file: a square that contains every box

_keep_broken: ContextVar[bool] = ContextVar("keep_broken", default=False)


@contextmanager
def keep_broken_files() -> Iterator[None]:
    """Treat files with an unreadable header as square inside the block. Use this to check files, not to train.

    >>> with keep_broken_files():
    ...     upright_sizes([Path("nowhere.jpg")], workers=1).tolist() == [list(UNKNOWN)]
    True
    """
    token = _keep_broken.set(True)
    try:
        yield
    finally:
        _keep_broken.reset(token)


def keeps_broken_files() -> bool:
    """Return whether files are opened to be checked, not to train.

    >>> keeps_broken_files()
    False
    """
    return _keep_broken.get()


def upright_sizes(files: Sequence[Path], workers: int) -> Int64[Tensor, "n 2"]:
    """Return width and height of each file, after its EXIF rotation.

    The sizes are cached until one of the files changes.

    >>> upright_sizes([], workers=2).shape
    torch.Size([0, 2])
    """
    fingerprints = map_in_threads(fingerprint, files, workers)
    key = hashlib.sha256(" ".join([f"format {FORMAT}", *fingerprints]).encode()).hexdigest()
    with suppress(OSError, ValueError):
        cache = cache_folder() / f"{key}.sizes"
        return torch.from_numpy(np.fromfile(cache, np.int64).reshape(len(files), 2))
    sizes = _read_sizes(files, workers)
    if not (sizes == UNKNOWN[0]).any():
        with suppress(OSError, ValueError):  # the disk is full or read-only, or there is no folder
            cache = cache_folder() / f"{key}.sizes"
            cache.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(cache, sizes.numpy().tofile)
    return sizes


def _read_sizes(files: Sequence[Path], workers: int) -> Int64[Tensor, "n 2"]:
    prepare_pillow()
    sizes = list(parallel_map(_size_or_reason, files, workers))
    if not keeps_broken_files():
        refuse_unreadable(files, [size if isinstance(size, str) else None for size in sizes])
    known = [UNKNOWN if isinstance(size, str) else size for size in sizes]
    return torch.tensor(known, dtype=torch.int64).reshape(-1, 2)


def _size_or_reason(file: Path) -> tuple[int, int] | str:
    """Return width and height, or the reason why the file is unreadable."""
    try:
        with open_image(file) as image:
            return upright_size(image)
    except UnreadableError as error:
        return error.reason
