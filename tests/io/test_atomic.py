import os

import pytest

from divconq.io.atomic import remove_unfinished, temporary_name, write_atomically


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(target):
        target.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_file_and_folder_are_synced_before_it_returns(tmp_path, monkeypatch):
    path, synced = tmp_path / "file", []
    fsync = os.fsync

    def noted(number):
        here = os.fstat(number).st_ino
        synced.append(("folder" if here == tmp_path.stat().st_ino else "file", path.exists()))
        fsync(number)

    monkeypatch.setattr(os, "fsync", noted)
    write_atomically(path, lambda target: target.write_text("new"))
    assert synced == [("file", False), ("folder", True)]


def test_only_unfinished_files_are_removed(tmp_path):
    mine = tmp_path / ".mine"
    mine.write_text("keep")
    temporary_name(tmp_path / "file").write_text("half")
    remove_unfinished(tmp_path)
    assert list(tmp_path.iterdir()) == [mine]
