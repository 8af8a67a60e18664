"""The files of one cache, and the lock for its writers."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from jaxtyping import Bool, UInt8


@dataclass(frozen=True)
class CacheFiles:
    """The files of one cache: all have the name ``key`` and lie in one folder.

    >>> files = CacheFiles(Path("store"), "1f", size=8)
    >>> files.data.name, files.row, files.is_complete(4)
    ('1f.u8', 192, False)
    """

    folder: Path
    key: str
    size: int

    @property
    def data(self) -> Path:
        """Return the path of the images of a complete cache."""
        return self.folder / f"{self.key}.u8"

    @property
    def partial(self) -> Path:
        """Return the path of the images of an incomplete cache."""
        return self.folder / f"{self.key}.partial"

    @property
    def done(self) -> Path:
        """Return the path of the progress: one byte per image of an incomplete cache, 1 if it is written."""
        return self.folder / f"{self.key}.done"

    @property
    def index(self) -> Path:
        """Return the path of the fingerprints of all images."""
        return self.folder / f"{self.key}.json"

    @property
    def lock(self) -> Path:
        """Return the path of the lock file. Only its holder may write the cache."""
        return self.folder / f"{self.key}.lock"

    @property
    def row(self) -> int:
        """Return the number of bytes per image."""
        return self.size * self.size * 3

    def is_complete(self, count: int) -> bool:
        """Return whether the cache holds all ``count`` images."""
        return _bytes(self.data) == count * self.row

    def progress(self, count: int) -> Bool[np.ndarray, " count"]:
        """Return which of ``count`` images an incomplete cache holds."""
        if _bytes(self.partial) == count * self.row and _bytes(self.done) == count:
            return np.fromfile(self.done, dtype=bool)
        return np.zeros(count, dtype=bool)

    def open(self, file: Path) -> UInt8[np.ndarray, "n size size 3"]:
        """Map the images of ``data`` or ``partial`` into memory."""
        return np.asarray(np.memmap(file, np.uint8, "r").reshape(-1, self.size, self.size, 3))

    def clear(self) -> None:
        """Delete all files except the lock, which other processes may wait for."""
        for file in self.folder.glob(f"{self.key}.*"):
            if file != self.lock:
                file.unlink(missing_ok=True)


@contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Wait for the lock and hold it. The system releases the lock of a process that dies.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as store, exclusive(Path(store, "lock")):
    ...     Path(store, "lock").exists()
    True
    """
    with lock.open("a") as handle:
        if not try_lock(handle):
            print_status("another process is building this cache; waiting for it")
            while not try_lock(handle):
                time.sleep(0.2)
        yield


def try_lock(handle: IO[str]) -> bool:
    """Lock an open file and return True, or return False if another process holds the lock.

    >>> import tempfile
    >>> with tempfile.TemporaryFile("w") as handle:
    ...     try_lock(handle)
    True
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def print_status(sentence: str) -> None:
    """Print a sentence to stderr, where the progress bars are.

    >>> print_status("decoding 4 images")
    """
    print(sentence, file=sys.stderr, flush=True)


def _bytes(file: Path) -> int | None:
    return file.stat().st_size if file.exists() else None
