import os

import pytest
import torch
from PIL import Image

from divconq.data.images import sizes as sizes_module
from divconq.data.images.fingerprints import cache_folder, fingerprint
from divconq.data.images.sizes import keep_broken_files, upright_sizes
from divconq.data.images.workers import THREAD_CHUNK, map_in_threads


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    monkeypatch.setenv("DIVCONQ_CACHE", str(tmp_path / "cache"))
    (tmp_path / "photos").mkdir()
    files = [tmp_path / "photos" / f"{i}.png" for i in range(3)]
    for i, file in enumerate(files):
        Image.new("RGB", (10 + i, 5)).save(file)
    return files


@pytest.fixture
def headers_read(monkeypatch):
    """Record the number of file headers read in each call."""
    read, counts = sizes_module._read_sizes, []
    monkeypatch.setattr(
        sizes_module, "_read_sizes", lambda files, workers: counts.append(len(files)) or read(files, workers)
    )
    return counts


SIZES = [[10, 5], [11, 5], [12, 5]]


def test_sizes_are_read_once(pictures, headers_read):
    assert [upright_sizes(pictures, 2).tolist() for _ in range(3)] == 3 * [SIZES]
    assert headers_read == [3]
    assert upright_sizes(pictures[:2], 2).tolist() == SIZES[:2]
    assert headers_read == [3, 2], "other files are another list"


@pytest.mark.parametrize("change", ["size", "time"])
def test_changed_file_is_read_again(pictures, headers_read, change):
    upright_sizes(pictures, 2)
    state = pictures[1].stat()
    Image.new("RGB", (3, 40) if change == "size" else (13, 5)).save(pictures[1])
    if change == "size":
        os.utime(pictures[1], ns=(state.st_atime_ns, state.st_mtime_ns))
    else:
        os.utime(pictures[1], ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    assert upright_sizes(pictures, 2)[1].tolist() == ([3, 40] if change == "size" else [13, 5])
    assert len(headers_read) == 2


@pytest.mark.parametrize("content", [b"", b"half of it", bytes(16 * 4)])
def test_damaged_size_cache_is_ignored(pictures, content):
    upright_sizes(pictures, 2)
    (cache,) = cache_folder().iterdir()
    cache.write_bytes(content)
    assert upright_sizes(pictures, 2).tolist() == SIZES
    assert upright_sizes(pictures, 2).tolist() == SIZES


def test_sizes_work_without_cache_folder(pictures, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder would be")
    assert upright_sizes(pictures, 2).tolist() == SIZES


def test_sizes_of_broken_files_are_not_cached(pictures, headers_read):
    pictures[0].write_bytes(b"no image")
    for _ in range(2):
        with keep_broken_files():
            assert upright_sizes(pictures, 2).shape == (3, 2)
        with pytest.raises(ValueError, match=r"0\.png"):
            upright_sizes(pictures, 2)
    assert headers_read == [3, 3, 3, 3]


@pytest.mark.parametrize("n", [0, 1, THREAD_CHUNK, THREAD_CHUNK + 1, 3 * THREAD_CHUNK])
def test_map_in_threads_keeps_order(n):
    assert map_in_threads(lambda i: i * i, range(n), 2) == [i * i for i in range(n)]


def test_fingerprint_depends_on_path_box_and_existence(pictures, tmp_path):
    box = tuple(torch.tensor([0.0, 0.0, 2.0, 2.0]).tolist())
    fingerprints = [
        *map(fingerprint, pictures),
        fingerprint(pictures[0], box),
        fingerprint(tmp_path / "not there.png"),
    ]
    assert len(set(fingerprints)) == len(fingerprints)
