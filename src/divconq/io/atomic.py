"""Atomic file writes: a file is written completely or not at all, even after a power failure."""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # disk full, quota exceeded, file too large


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call ``write`` on a temporary path, sync the file to disk, then rename it to ``path``.

    The file has the permissions of the umask, also if ``write`` creates it with others. If the disk is full, the
    OSError names ``path``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder, "a.txt"), lambda path: path.write_text("all of it"))
    ...     [file.read_text() for file in Path(folder).iterdir()]
    ['all of it']
    """
    temporary = temporary_name(path)
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        write(temporary)
        temporary.chmod(mode)
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except Exception as error:
        if (number := _full(error)) is not None:
            raise OSError(number, os.strerror(number), str(path)) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _full(error: Exception) -> int | None:
    """Return the error number of a full disk, or None for other errors. safetensors has it in the message.

    >>> _full(RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"))
    28
    """
    found = re.search(r"\(os error (\d+)\)", str(error))
    number = error.errno if isinstance(error, OSError) else int(found[1]) if found else None
    return number if number in FULL else None


def temporary_name(path: Path) -> Path:
    """Return the name of a file while it is being written."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def remove_unfinished(folder: Path) -> None:
    """Remove temporary files that a killed process left in a folder.

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
    """Sync the file names of a folder to disk. Windows needs no such call."""
    if os.name != "posix":
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
