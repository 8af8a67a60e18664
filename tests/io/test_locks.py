"""A lock has one holder, names it, and is free when its process is dead."""

import errno
import json
import os
import signal
import threading
import time

import pytest

from divconq.io import locks
from divconq.io.lock_holder import Holder, encode
from divconq.io.locks import FileLock, LockedError


def child(work):
    """Run ``work`` in a forked process that tells when it is ready; return its id."""
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os.write(tell, b"1")
            time.sleep(60)
        finally:
            os._exit(1)
    os.close(tell)
    assert os.read(ready, 1) == b"1"
    os.close(ready)
    return pid


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def refused(path):
    """Return the words of the refusal in another process, or "" if it gets the lock."""
    said, tell = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            FileLock(path, "RUN").acquire()
        except LockedError as error:
            os.write(tell, str(error).encode())
        finally:
            os._exit(0)
    os.close(tell)
    os.waitpid(pid, 0)
    with os.fdopen(said) as file:
        return file.read()


@pytest.fixture
def path(tmp_path):
    return tmp_path / ".lock"


def test_a_second_process_is_refused_and_told_who_holds_the_lock(path):
    with FileLock(path, "RUN"):
        assert refused(path).startswith(f"RUN is being written by process {os.getpid()} of ")
        assert "; wait for it or stop it" in refused(path)
    assert not path.exists()
    assert refused(path) == ""


def test_the_lock_of_a_killed_process_is_free_at_once_though_its_child_lives(path):
    """A forked worker has the same open files, and does not keep the lock."""
    children = []

    def holder():
        FileLock(path, "RUN").acquire()
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)

    children.append(child(holder))
    assert f"process {children[0]} of" in refused(path)
    kill(children[0])
    assert path.exists(), "the record of the dead process is still there"
    with FileLock(path, "RUN"):
        assert f"process {os.getpid()} of" in refused(path)


def test_another_thread_is_refused_and_does_not_release_the_lock(path):
    with FileLock(path, "RUN"):
        said = []

        def other():
            with pytest.raises(LockedError) as error:
                FileLock(path, "RUN").acquire()
            said.append(str(error.value))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert said == ["RUN is being written by another thread of this process; wait for it"]
        assert refused(path), "closing any descriptor of the file would have released the lock"


def test_a_lock_file_that_was_removed_meanwhile_is_not_taken(path, monkeypatch):
    """The last holder removes the file between our opening and our locking of it."""
    monkeypatch.setattr(locks, "POLL", 0.01)
    real, removed = locks._lock_descriptor, []

    def late(descriptor):
        if not removed:
            removed.append(path.unlink())
        real(descriptor)

    monkeypatch.setattr(locks, "_lock_descriptor", late)
    with FileLock(path, "RUN"):
        monkeypatch.setattr(locks, "_lock_descriptor", real)
        assert refused(path)


def test_a_child_that_ends_does_not_release_the_lock(path):
    with FileLock(path, "RUN") as lock:
        if (pid := os.fork()) == 0:
            lock.release()
            os._exit(0)
        os.waitpid(pid, 0)
        assert refused(path)


@pytest.fixture
def without_locks(monkeypatch):
    def no_locks(descriptor):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks, "_lock_descriptor", no_locks)
    monkeypatch.setattr(locks, "SETTLE", 0.05)


def test_a_file_system_without_locks(path, without_locks):
    pid = child(FileLock(path, "RUN").acquire)
    assert f"process {pid} of" in refused(path)
    kill(pid)
    with FileLock(path, "RUN"):
        assert refused(path)
    assert not path.exists()


def test_of_two_records_at_once_the_last_one_counts(path, without_locks, monkeypatch):
    other = Holder.this_process()
    monkeypatch.setattr(locks.time, "sleep", lambda seconds: path.write_bytes(encode(other, beat=0)))
    with pytest.raises(LockedError, match=f"process {other.pid} of"):
        FileLock(path, "RUN").acquire()


def of_another_machine(path, beat=0):
    values = json.loads(encode(Holder.this_process(), beat))
    path.write_text(json.dumps(values | {"machine": "another", "host": "node7", "pid": 4711}))


def test_a_process_on_another_machine_that_is_alive_keeps_the_lock(path, monkeypatch):
    """Some network file systems keep locks within one machine, so the file can be locked here."""
    monkeypatch.setattr(locks, "POLL", 0.01)
    of_another_machine(path)
    timer = threading.Timer(0.1, of_another_machine, (path, 1))
    timer.start()
    with (
        pytest.warns(UserWarning, match="waiting 30 seconds to see whether it still runs"),
        pytest.raises(LockedError, match=r"process 4711 of .* on node7 since"),
    ):
        FileLock(path, "RUN").acquire()
    timer.join()


def test_a_process_on_another_machine_that_is_dead_loses_the_lock(path, monkeypatch):
    monkeypatch.setattr(locks, "POLL", 0.01)
    monkeypatch.setattr(locks, "DEAD", 0.1)
    of_another_machine(path)
    with pytest.warns(UserWarning, match="on node7"), FileLock(path, "RUN"):
        assert refused(path)


def test_the_holder_writes_a_heartbeat(path, monkeypatch):
    monkeypatch.setattr(locks, "BEAT", 0.01)
    with FileLock(path, "RUN"):
        late = time.monotonic() + 20
        while (
            time.monotonic() < late and b'"beat": 0' in path.read_bytes()
        ):  # a test may read: it ends the lock
            time.sleep(0.01)
        assert b'"beat": 0' not in path.read_bytes()
