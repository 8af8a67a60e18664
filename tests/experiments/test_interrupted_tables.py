"""A table that is killed, stopped, or executed by two processes at once has the results of an undisturbed one."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_runs import TEXT, scores

from divconq.cli import main
from divconq.experiments import parse_table, plan, read_results, reproduce, runner
from divconq.io.locks import FileLock
from divconq.runs.folder import Run


@pytest.fixture
def text(photos):
    return TEXT.format(photos=photos).replace("seeds: [0, 1]", "seeds: [0]")


@pytest.fixture
def table(text):
    return parse_table("photos", text)


@pytest.fixture(scope="module")
def complete(photos, tmp_path_factory):
    """The whole table, undisturbed."""
    out = tmp_path_factory.mktemp("complete")
    table = parse_table("photos", TEXT.format(photos=photos).replace("seeds: [0, 1]", "seeds: [0]"))
    reproduce(table, out, say=lambda line: None, device="cpu", workers=2, commit="same")
    return out


def results(out):
    return {(result.row, result.seed): scores(result) for result in read_results(out / "finished")}


def assert_same_results(out, complete, left=0):
    assert len(read_results(out / "finished")) == 2, "no result is stored twice"
    assert results(out) == results(complete)
    tables = [json.loads((each / "photos.json").read_text()) for each in (out, complete)]
    assert [row["scores"] for row in tables[0]["rows"]] == [row["scores"] for row in tables[1]["rows"]]
    assert len(list((out / "runs").iterdir())) == left, "run folders are deleted"


def test_a_table_killed_seven_times_has_the_same_results(text, complete, tmp_path):
    (tmp_path / "photos.yaml").write_text(text)
    script = Path(__file__).with_name("killed_tables.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "photos.yaml"), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(script.parents[1]), *sys.path])},
    )
    ends = json.loads(done.stdout)
    assert ends.pop("last") == 0, done.stderr
    assert set(ends.values()) == {signal.SIGKILL}, (ends, done.stderr)
    assert_same_results(
        tmp_path / "out", complete, left=2
    )  # of the process that was killed after the result: run folder and lock


def test_a_run_that_another_process_executes_is_left_out(table, complete, tmp_path):
    """Also its folder is left alone, which is deleted if it holds no checkpoint."""
    first = plan(table, tmp_path)[0]
    begun = tmp_path / "runs" / first.name / "config.yaml"
    begun.parent.mkdir(parents=True)
    begun.write_text("")
    ready, tell = os.pipe()
    if (pid := os.fork()) == 0:
        FileLock(tmp_path / "runs" / f".{first.name}.lock", first.name).acquire()
        os.write(tell, b"1")
        time.sleep(60)
        os._exit(0)
    os.read(ready, 1)
    said = []
    try:
        outcome = reproduce(table, tmp_path, say=said.append, device="cpu", workers=2, commit="same")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert begun.exists()
    assert f"[1/2] plain, seed 0: left out: {begun.parent} is being written by process {pid} of" in said[1]
    assert "run the same command again" in said[1]
    assert [row["missing"] for row in outcome.figures["rows"]] == [[0], []]
    reproduce(table, tmp_path, say=lambda line: None, device="cpu", workers=2, commit="same")
    assert_same_results(tmp_path, complete)


def test_a_run_that_another_process_has_finished_meanwhile_is_not_trained_again(
    table, complete, tmp_path, monkeypatch
):
    planned = plan(table, tmp_path)
    monkeypatch.setattr(runner, "plan", lambda *args, **kwargs: planned)  # before the other process ends
    (tmp_path / "finished").mkdir()
    content = (complete / "finished" / "photos.jsonl").read_bytes()
    (tmp_path / "finished" / "photos.jsonl").write_bytes(content)
    monkeypatch.setattr("divconq.train.train", lambda *args, **kwargs: pytest.fail("trained again"))
    reproduce(table, tmp_path, say=lambda line: None, device="cpu", workers=2)
    assert_same_results(tmp_path, complete)


def command(text, folder):
    (folder / "photos.yaml").write_text(text)
    words = [
        "reproduce",
        folder / "photos.yaml",
        "--out",
        folder / "out",
        "--device",
        "cpu",
        "--workers",
        "2",
    ]
    return [str(word) for word in words]


def test_sigterm_writes_a_checkpoint_and_the_same_command_continues(
    text, complete, tmp_path, monkeypatch, capsys
):
    words, real = command(text, tmp_path), Run.save_division
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the test survives a command without a handler
    with monkeypatch.context() as patch:
        patch.setattr(Run, "save_division", lambda *args: signal.raise_signal(signal.SIGTERM) or real(*args))
        with pytest.raises(SystemExit) as stop:
            main(words)
    signal.signal(signal.SIGTERM, before)
    assert stop.value.code == 143
    assert "stopped; continue from the last checkpoint with the same command" in capsys.readouterr().err
    assert len(list((tmp_path / "out" / "runs").glob("*/last.pt"))) == 1
    main(words)
    assert_same_results(tmp_path / "out", complete)


@pytest.mark.parametrize("name", ["photos.jsonl", "last.pt"])
def test_a_full_disk_names_the_file_and_the_same_command_continues(
    text, complete, tmp_path, monkeypatch, capsys, name
):
    words, real = command(text, tmp_path), os.fsync

    def full(descriptor):
        if name in Path(f"/proc/self/fd/{descriptor}").readlink().name:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(SystemExit) as stop:
            main(words)
    assert stop.value.code == 1
    said = capsys.readouterr().err
    assert "divconq: error: the disk is full ([Errno 28] No space left on device: '" in said
    assert f"{name}'); free space, then run the same command again" in said
    assert not list((tmp_path / "out").rglob(".*"))
    if name == "photos.jsonl":
        assert (tmp_path / "out" / "finished" / name).read_bytes() == b"", "no half of a line"
    main(words)
    assert_same_results(tmp_path / "out", complete)
