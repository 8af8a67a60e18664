"""A lock file that only one process holds, also on network file systems.

Two things keep a second process out:

- A POSIX record lock (``fcntl.lockf``). It works on local disks and on NFS. The system releases it when the process
  dies, however it dies, and forked processes do not inherit it. Closing any descriptor of the file also releases it,
  so a process never opens a lock file that it holds.
- A heartbeat: the holder writes a counter into the file. Some file systems have no locks, and some keep them within
  one machine. There, a process on another machine waits until the counter has not changed for ``DEAD`` seconds.

The lock of a process that was killed on this machine is free at once.
"""

import errno
import os
import sys
import threading
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from divconq.io.lock_holder import Holder, decode, encode

BEAT = 5.0  # seconds between two heartbeats
DEAD = 30.0  # seconds without a heartbeat until a process on another machine counts as dead
POLL = 1.0  # seconds between two looks at the heartbeat of another machine
SETTLE = 1.0  # seconds until a record counts as ours on a file system without locks
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
MAX_RECORD = 4096  # bytes
FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_SYNC", 0)  # other machines see each heartbeat

_held: dict[tuple[int, int], int] = {}  # device and inode of each lock file, and the process that holds it
_acquiring = threading.Lock()


class LockedError(ValueError):
    """Raised for a lock that another process holds."""


class FileLock:
    """The lock ``path`` protects ``what``, a name for error messages.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as run, FileLock(Path(run, ".lock"), run):
    ...     Path(run, ".lock").exists()
    True
    """

    def __init__(self, path: Path, what: str | Path) -> None:
        self.path, self.what = path, what
        self.descriptor: int | None = None
        self.has_locks = True  # False on a file system without locks

    def __enter__(self) -> "FileLock":
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self) -> None:
        """Take the lock, or raise LockedError with the name of the process that holds it."""
        self.watched: tuple[bytes, float] | None = None
        self.stopped, self.heartbeat = threading.Event(), threading.Thread(target=self._beat, daemon=True)
        with _acquiring:
            while not self._try():
                time.sleep(POLL)
        self.heartbeat.start()

    def release(self) -> None:
        """Give the lock back and remove its file. Does nothing if this process does not hold it."""
        if self.descriptor is None or _held.get(_key(self.descriptor)) != os.getpid():
            return
        self.stopped.set()
        if self.heartbeat.is_alive():
            self.heartbeat.join()
        with _acquiring:
            del _held[_key(self.descriptor)]
            with suppress(OSError):
                if decode(_read(self.descriptor)) == self.holder:
                    self.path.unlink()
            os.close(self.descriptor)
        self.descriptor = None

    def _try(self) -> bool:
        """Take the lock and return True, or return False if it must be tried again."""
        with suppress(FileNotFoundError):
            if _held.get(_key(self.path)) == os.getpid():
                raise LockedError(
                    f"{self.what} is being written by another thread of this process; wait for it"
                )
        descriptor = os.open(self.path, FLAGS, 0o666)
        try:
            taken = self._lock(descriptor) and self._is_free(_read(descriptor))
            if taken:
                self._write_record(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        if taken:
            self.descriptor = descriptor
            _held[_key(descriptor)] = os.getpid()
        else:
            os.close(descriptor)  # NFS reads a file anew when it is opened again
        return taken

    def _lock(self, descriptor: int) -> bool:
        """Lock the open file. Return whether it still has its name: the last holder removes the file."""
        try:
            _lock_descriptor(descriptor)
            self.has_locks = True
        except OSError as error:
            if error.errno not in NO_LOCKS:
                if not isinstance(error, (BlockingIOError, PermissionError)):
                    raise
                self._refuse(decode(_read(descriptor)))
            self.has_locks = False
        try:
            return _key(self.path) == _key(descriptor)
        except FileNotFoundError:
            return False

    def _is_free(self, content: bytes) -> bool:
        """Return whether the process in the record is dead; False if that is not known yet."""
        holder = decode(content)
        if not content or (self.has_locks and (holder is None or holder.is_local)):
            return True
        if holder is not None and holder.has_known_pid:
            if holder.runs():
                self._refuse(holder)
            return True
        if self.watched is None:
            self.watched = content, time.monotonic()
            warnings.warn(
                f"{self.what} was written by {holder or 'an unknown process'}, which did not end normally; "
                f"waiting {DEAD:g} seconds to see whether it still runs",
                stacklevel=2,
            )
        if content != self.watched[0]:
            self._refuse(holder)
        return time.monotonic() - self.watched[1] > DEAD

    def _write_record(self, descriptor: int) -> None:
        self.holder = Holder.this_process()
        os.ftruncate(descriptor, 0)
        _write(descriptor, encode(self.holder, beat=0))
        if not self.has_locks:
            time.sleep(SETTLE)
            other = decode(_read(descriptor))
            if other != self.holder:
                self._refuse(other)

    def _beat(self) -> None:
        """Write the heartbeat until the lock is given back."""
        assert self.descriptor is not None
        beat = 0
        while not self.stopped.wait(BEAT):
            beat += 1
            with suppress(OSError):  # for example a full disk; the next heartbeat may succeed
                _write(self.descriptor, encode(self.holder, beat))

    def _refuse(self, holder: Holder | None) -> NoReturn:
        raise LockedError(
            f"{self.what} is being written by {holder or 'another process'}; wait for it or stop it"
        ) from None


def _key(file: Path | int) -> tuple[int, int]:
    state = os.fstat(file) if isinstance(file, int) else file.stat()
    return state.st_dev, state.st_ino


def _read(descriptor: int) -> bytes:
    os.lseek(descriptor, 0, os.SEEK_SET)
    return os.read(descriptor, MAX_RECORD)


def _write(descriptor: int, content: bytes) -> None:
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, content)


def _lock_descriptor(descriptor: int) -> None:
    """Lock an open file. Raise BlockingIOError or PermissionError if another process holds the lock."""
    if sys.platform == "win32":
        import msvcrt

        os.lseek(descriptor, MAX_RECORD, os.SEEK_SET)  # Windows lets no other process read what is locked
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
