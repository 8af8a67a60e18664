"""The files of one cache, side by side in a folder, and the lock that lets one process at a time write them."""

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
class Place:
    """Where the files of one cache are.

    >>> place = Place(Path("store"), "1f", size=8)
    >>> place.data.name, place.row, place.holds(4)
    ('1f.u8', 192, False)
    """

    folder: Path
    key: str
    size: int

    @property
    def data(self) -> Path:
        """All images, once there are all."""
        return self.folder / f"{self.key}.u8"

    @property
    def partial(self) -> Path:
        """The images while they are being decoded."""
        return self.folder / f"{self.key}.partial"

    @property
    def done(self) -> Path:
        """Which of those are there, a byte each."""
        return self.folder / f"{self.key}.done"

    @property
    def index(self) -> Path:
        """The stamp of each image."""
        return self.folder / f"{self.key}.json"

    @property
    def lock(self) -> Path:
        """What a process that writes holds."""
        return self.folder / f"{self.key}.lock"

    @property
    def row(self) -> int:
        """Bytes of one image."""
        return self.size * self.size * 3

    def holds(self, count: int) -> bool:
        """Whether the cache of ``count`` images is complete."""
        return _bytes(self.data) == count * self.row

    def progress(self, count: int) -> Bool[np.ndarray, " count"]:
        """Which of ``count`` images are in the unfinished file."""
        if _bytes(self.partial) == count * self.row and _bytes(self.done) == count:
            return np.fromfile(self.done, dtype=bool)
        return np.zeros(count, dtype=bool)

    def open(self, file: Path) -> UInt8[np.ndarray, "n size size 3"]:
        """The images of one of the two files, mapped into memory."""
        return np.asarray(np.memmap(file, np.uint8, "r").reshape(-1, self.size, self.size, 3))

    def clear(self) -> None:
        """Delete everything but the lock, which others may wait for."""
        for file in self.folder.glob(f"{self.key}.*"):
            if file != self.lock:
                file.unlink(missing_ok=True)


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Wait until no other process is in here; the lock of one that died is free.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as store, alone(Path(store, "lock")):
    ...     Path(store, "lock").exists()
    True
    """
    with lock.open("a") as handle:
        if not try_lock(handle):
            say("another process is building this cache; waiting for it")
            while not try_lock(handle):
                time.sleep(0.2)
        yield


def try_lock(handle: IO[str]) -> bool:
    """Take the lock of an open file, if nobody has it; it is free again when the file is closed.

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


def _bytes(file: Path) -> int | None:
    return file.stat().st_size if file.exists() else None


def say(sentence: str) -> None:
    """Tell the user, beside the progress bars.

    >>> say("decoding 4 images")
    """
    print(sentence, file=sys.stderr, flush=True)
