"""The lock of a run folder. A process holds it while it writes the run; commands that only read need no lock."""

from pathlib import Path

from divconq.io.locks import FileLock

LOCK = ".lock"


def run_lock(folder: Path) -> FileLock:
    """Return the lock of a run folder.

    >>> run_lock(Path("runs/cub")).path.as_posix()
    'runs/cub/.lock'
    """
    return FileLock(folder / LOCK, folder)


def check_not_locked(folder: Path) -> None:
    """Raise ValueError if a process writes the run. It is a cheap check before the data is opened."""
    if (folder / LOCK).exists():
        with run_lock(folder):
            pass
