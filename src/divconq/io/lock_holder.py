"""The record in a lock file: which process holds the lock, and whether it still runs."""

import datetime
import getpass
import json
import os
import secrets
import socket
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock.

    ``machine`` is the boot id of the kernel and ``namespace`` its process ids, so that ``pid`` is only compared where
    it has a meaning. ``began`` is the start of the process, because a system uses a process id again.
    ``token`` is different for every holder.
    """

    pid: int
    host: str
    user: str
    since: str
    machine: str
    namespace: str
    began: str
    token: str

    @classmethod
    def this_process(cls) -> "Holder":
        """Return the record of the process that calls this method.

        >>> Holder.this_process().runs()
        True
        """
        return cls(
            pid=os.getpid(),
            host=socket.gethostname(),
            user=_user(),
            since=datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds"),
            machine=_machine(),
            namespace=_namespace(),
            began=_start_of(os.getpid()),
            token=secrets.token_hex(8),
        )

    def __str__(self) -> str:
        return f"process {self.pid} of {self.user} on {self.host} since {self.since}"

    @property
    def is_local(self) -> bool:
        """Return whether the process runs under the same kernel."""
        return self.machine == _machine()

    @property
    def has_known_pid(self) -> bool:
        """Return whether ``pid`` means the same process here."""
        return self.is_local and self.namespace == _namespace()

    def runs(self) -> bool:
        """Return whether the process still runs. Its process id must be known here."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # a process of another user
        return _start_of(self.pid) == self.began


def encode(holder: Holder, beat: int) -> bytes:
    """Return the content of a lock file; ``beat`` is the number of heartbeats."""
    return (json.dumps({**asdict(holder), "beat": beat}) + "\n").encode()


def decode(content: bytes) -> Holder | None:
    """Return the holder in a lock file, or None if the file is empty or damaged.

    >>> mine = Holder.this_process()
    >>> decode(encode(mine, beat=1)) == mine, decode(b"")
    (True, None)
    """
    try:
        values = json.loads(content)
        del values["beat"]
        return Holder(**values)
    except (ValueError, TypeError, KeyError):
        return None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        return f"user {os.getuid()}" if hasattr(os, "getuid") else "an unknown user"


def _machine() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _start_of(pid: int) -> str:
    """Return the start of a process in clock ticks since the start of the system; "" if it is unknown or dead."""
    try:
        state, *others = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state == "Z" else others[18]
    except (OSError, IndexError, ValueError):
        return ""
