"""Files that are written whole or not at all, also when the power fails."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk, a quota, the largest file there may be


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a file beside ``path``, make sure it is on disk, then put it in place.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder, "a.txt"), lambda path: path.write_text("all of it"))
    ...     [file.read_text() for file in Path(folder).iterdir()]
    ['all of it']
    """
    temporary = temporary_name(path)
    try:
        write(temporary)
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def temporary_name(path: Path) -> Path:
    """What a file is called until it is whole."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def remove_unfinished(folder: Path) -> None:
    """Remove what a process that was killed had not finished writing.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = temporary_name(Path(folder, "a.txt")).write_text("half of")
    ...     remove_unfinished(Path(folder))
    ...     list(Path(folder).iterdir())
    []
    """
    for file in folder.glob(".*.tmp"):
        file.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make sure that the names of a folder's files are on disk; Windows does so by itself."""
    if os.name != "posix":
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
