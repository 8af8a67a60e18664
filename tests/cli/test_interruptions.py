"""Commands that are stopped, that cannot print, or whose disk or images go away."""

import errno
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from conftest import write_photos
from divconq import divide_and_conquer
from divconq.cli import main
from divconq.runs.folder import Run
from divconq.train import train
from test_resume import assert_same_runs, flags


def ends_with(code, words):
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    assert stop.value.code == code


def shell(words, redirection):
    """Run a command with redirected streams; return its exit code, and what it printed where that was possible."""
    command = f'exec "$@" {redirection}'
    done = subprocess.run(
        ["bash", "-c", command, "bash", sys.executable, "-m", "divconq", *map(str, words)],
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout, done.stderr


def half_written(folder):
    return [path.name for path in folder.rglob(".*")]


# Streams


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_training_goes_on_if_stderr_cannot_be_written(tiny, tmp_path, redirection):
    """If it is closed, no file of the run gets its number: the system would write messages into that file."""
    out = tmp_path / "run"
    words = ["train", "--out", out, *flags(tiny, epochs=1, k_max=1)]
    code, told, _ = shell(words, redirection)
    assert code == 0
    assert f"run folder:  {out}" in told
    assert "training on" not in told, "messages do not end up among the results"
    assert (out / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("redirection", "reason"), [(">&-", "Bad file descriptor"), (">/dev/full", "No space left on device")]
)
def test_a_result_that_cannot_be_printed_is_an_error(redirection, reason):
    code, _, said = shell(["presets", "list"], redirection)
    assert code == 1
    assert said == (
        f"divconq: error: the result cannot be printed to standard output ({reason}); all files of the command are "
        "complete: free space, or redirect the output to another place\n"
    )


def test_a_reader_that_is_gone_ends_the_command_silently():
    code, told, said = shell(["presets", "list"], "| true; exit ${PIPESTATUS[0]}")
    assert (code, told, said) == (0, "", "")


# Signals

SLOW_DECODING = """
import sys, time
from divconq.data.images import cache
real = cache.decode
cache.decode = lambda *args: time.sleep(0.05) or real(*args)
from divconq.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_processes_while_images_are_decoded(tiny, tmp_path, number):
    photos = write_photos(tmp_path / "photos", classes=16, images=34, size=8)  # enough for worker processes
    words = ["train", "--out", str(tmp_path / "run"), *flags(tiny, data=str(photos))]
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_DECODING, *words],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"DIVCONQ_CACHE": str(tmp_path / "cache")},
    )
    late = time.monotonic() + 60
    while not list((tmp_path / "cache").glob("*.partial")) and time.monotonic() < late:
        time.sleep(0.05)
    time.sleep(0.3)
    os.killpg(process.pid, number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number, said
    assert "divconq: error: stopped; start again: nothing was written" in said
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()


def signal_at(monkeypatch, owner, name):
    """Send SIGTERM to this process in the first call of a function."""
    real, calls = getattr(owner, name), itertools.count()

    def signalled(*args, **kwargs):
        if next(calls) == 0:
            signal.raise_signal(signal.SIGTERM)
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, signalled)


def test_sigterm_in_a_division_saves_and_resumes(tiny, tmp_path, monkeypatch, capsys):
    train_flags = flags(tiny, epochs=2)
    main(["train", "--out", str(tmp_path / "whole"), *train_flags])
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        signal_at(patch, divide_and_conquer, "divide")
        ends_with(143, ["train", "--out", out, *train_flags])
    assert f"error: stopped; continue with: divconq train --resume {out}\n" in capsys.readouterr().err
    assert not half_written(out)
    main(["train", "--resume", str(out)])
    assert_same_runs(tmp_path / "whole", out)


def test_sigterm_in_the_export_completes_the_run(tiny, tmp_path, monkeypatch, capsys):
    train_flags = flags(tiny, epochs=1, k_max=1)
    main(["train", "--out", str(tmp_path / "whole"), *train_flags])
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        signal_at(patch, Run, "export")
        patch.setattr(
            "divconq.cli.training_command.write_analysis", lambda *args, **kwargs: pytest.fail("stopped")
        )
        ends_with(143, ["train", "--out", out, "--analyze", *train_flags])
    assert f"divconq: error: stopped; the run in {out} is complete\n" in capsys.readouterr().err
    assert_same_runs(tmp_path / "whole", out)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, photos):
    from tiny_settings import TINY

    out = tmp_path_factory.mktemp("trained") / "run"
    train(TINY.replace(data=str(photos), epochs=1, k_max=1), out)
    return out


def test_sigterm_in_analyze_leaves_nothing_half_written(trained, tmp_path, monkeypatch, capsys):
    out, before = tmp_path / "analysis", signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the test survives
    with monkeypatch.context() as patch:
        signal_at(patch, Path, "write_bytes")
        ends_with(143, ["analyze", trained, "--out", out, "--device", "cpu"])
    assert signal.signal(signal.SIGTERM, before) == signal.SIG_IGN
    assert "divconq: error: stopped; start again with the same command\n" in capsys.readouterr().err
    assert not half_written(tmp_path)
    assert not (out / "report.html").exists()
    main(["analyze", str(trained), "--out", str(out), "--device", "cpu"])
    assert (out / "report.html").is_file()


# A full disk


def fill_disk(monkeypatch, number):
    """Let sync number ``number`` fail as on a full disk."""
    real, calls = os.fsync, itertools.count(1)

    def full(descriptor):
        if next(calls) >= number:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor)

    monkeypatch.setattr(os, "fsync", full)


def test_a_full_disk_in_embed(trained, photos, tmp_path, monkeypatch, capsys):
    out = tmp_path / "e.npz"
    words = ["embed", trained, "--data", photos, "--out", out, "--device", "cpu"]
    with monkeypatch.context() as patch:
        fill_disk(patch, 1)
        ends_with(1, words)
    assert (
        f"divconq: error: the disk is full ([Errno 28] No space left on device: '{out}'); "
        "free space, then run the same command again\n"
    ) in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    main([str(word) for word in words])
    assert len(np.load(out)["labels"]) > 0


def test_a_full_disk_in_analyze(trained, tmp_path, monkeypatch, capsys):
    out = tmp_path / "analysis"
    with monkeypatch.context() as patch:
        fill_disk(patch, 3)
        ends_with(1, ["analyze", trained, "--out", out, "--device", "cpu"])
    assert f"the disk is full ([Errno 28] No space left on device: '{out}/" in capsys.readouterr().err
    assert not half_written(tmp_path)
    assert not (out / "report.html").exists()


# Images that go away


@pytest.mark.parametrize("cache", [False, True])
def test_an_image_that_is_removed_during_training(tiny, tmp_path, monkeypatch, capsys, cache):
    """A cached run goes on. Without a cache it ends with the path and the way to continue."""
    photos = write_photos(tmp_path / "photos", classes=8)
    train_flags = [*flags(tiny, data=str(photos), epochs=2), "--cache" if cache else "--no-cache"]
    main(["train", "--out", str(tmp_path / "whole"), *train_flags])
    out, removed, real = tmp_path / "run", [], Run.log

    def remove_and_log(run, record):
        removed.extend((file, file.read_bytes(), file.unlink()) for file in photos.rglob("0.png"))
        real(run, record)

    words = ["train", "--out", str(out), *train_flags]
    with monkeypatch.context() as patch:
        patch.setattr(Run, "log", remove_and_log)
        if cache:
            main(words)
        else:
            ends_with(2, words)
    if not cache:
        said = capsys.readouterr().err.splitlines()[-1]
        assert said.endswith(
            f"0.png was removed while the run used it; put it back, then continue with: divconq train --resume {out}"
        )
        for file, content, _ in removed:
            file.write_bytes(content)
        main(["train", "--resume", str(out)])
    assert_same_runs(tmp_path / "whole", out)
