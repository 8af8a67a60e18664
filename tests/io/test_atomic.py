import errno
import os
import resource

import pytest
import torch
from safetensors.torch import save_file

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


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_files_have_the_permissions_of_the_umask(tmp_path, umask, mode):
    def private(path):
        path.write_text("all of it")
        path.chmod(0o600)  # as safetensors does

    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "a.txt", private)
    finally:
        os.umask(before)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == mode


@pytest.mark.parametrize(
    "write",
    [lambda path: path.write_bytes(bytes(10_000)), lambda path: save_file({"x": torch.zeros(10_000)}, path)],
    ids=["bytes", "safetensors"],
)
def test_a_full_disk_names_the_file(tmp_path, write):
    """safetensors raises an error of its own, with the number of the error in its text."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as full:
            write_atomically(tmp_path / "file", write)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (full.value.errno, full.value.filename) == (errno.EFBIG, str(tmp_path / "file"))
    assert list(tmp_path.iterdir()) == []
