"""A run folder has one writer; readers need no lock."""

import os
import shutil
import signal
import time

import pytest

from divconq.cli import main
from divconq.runs.folder import Run
from divconq.runs.lock import run_lock
from divconq.train import train
from divconq.training.stop_signals import Stopped
from test_resume import StopAt, assert_same_runs


@pytest.fixture
def small(tiny):
    return tiny.replace(epochs=2)


@pytest.fixture
def written_by_another():
    """Return a function that starts a process which holds the lock of a run, and returns its id."""
    started = []

    def start(folder):
        ready, tell = os.pipe()
        if (pid := os.fork()) == 0:
            run_lock(folder).acquire()
            os.write(tell, b"1")
            time.sleep(60)
            os._exit(0)
        started.append(pid)
        assert os.read(ready, 1) == b"1"
        return pid

    yield start
    for pid in started:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_that_another_process_writes_is_refused_and_not_touched(
    small, tmp_path, monkeypatch, written_by_another, capsys
):
    out = tmp_path / "run"
    with pytest.raises(Stopped), monkeypatch.context() as patch:
        train(small, out, stop=StopAt(patch, 5))
    pid = written_by_another(out)
    before = contents(out)
    monkeypatch.setattr("divconq.train.prepare", lambda config: pytest.fail("the lock is checked first"))
    with pytest.raises(SystemExit) as stop:
        main(["train", "--resume", str(out)])
    assert stop.value.code == 2
    assert f"{out} is being written by process {pid} of" in capsys.readouterr().err
    assert contents(out) == before


def test_a_killed_writer_does_not_block_and_leaves_nothing_behind(
    small, tmp_path, monkeypatch, written_by_another
):
    train(small, tmp_path / "whole")
    out = tmp_path / "run"
    with pytest.raises(Stopped), monkeypatch.context() as patch:
        train(small, out, stop=StopAt(patch, 5))
    os.kill(written_by_another(out), signal.SIGKILL)
    late = time.monotonic() + 20
    while time.monotonic() < late:  # until the system has ended the process
        try:
            train(small, out, resume=True)
            break
        except ValueError:
            time.sleep(0.01)
    assert_same_runs(tmp_path / "whole", out)


def refused_in_another_process(folder):
    if (pid := os.fork()) == 0:
        try:
            run_lock(folder).acquire()
        except ValueError:
            os._exit(7)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


@pytest.mark.parametrize("resume", [False, True])
def test_the_lock_is_held_from_the_first_file_to_the_export(small, tmp_path, monkeypatch, resume):
    out, held = tmp_path / "run", []
    if resume:
        train(small.replace(epochs=1), out)
    for name in ("rewind", "save_division", "log", "export"):
        real = getattr(Run, name)

        def noted(run, *args, name=name, real=real):
            held.append((name, refused_in_another_process(out)))
            return real(run, *args)

        monkeypatch.setattr(Run, name, noted)
    train(small, out, resume=resume)
    assert {name for name, _ in held} >= {"log", "save_division", "export", *(["rewind"] if resume else [])}
    assert all(refused for _, refused in held)
    assert not (out / ".lock").exists()


def test_commands_that_read_need_no_lock(small, tmp_path, written_by_another, photos, capsys):
    out = tmp_path / "run"
    train(small, out)
    shutil.copytree(out, tmp_path / "other")
    written_by_another(out)
    main(["eval", str(out), "--device", "cpu"])
    main(["embed", str(out), "--data", str(photos), "--out", str(tmp_path / "e.npz"), "--device", "cpu"])
    main(["compare", str(out), str(tmp_path / "other")])
    assert (tmp_path / "e.npz").is_file()
