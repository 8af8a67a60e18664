import errno
import json
import os
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from divconq.data.dataset import ImageSet, InMemory, subset
from divconq.data.images import cache, cache_reuse, decoding, workers
from divconq.data.images.cache import Cached, cached, reuse_cached
from divconq.data.images.contents import content_hashes
from divconq.data.images.decoding import UnreadableError
from divconq.data.images.fingerprints import cache_folder
from divconq.data.sources.folder import flat_folder


def write(file, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (12, 9 + seed % 7, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(10):
        write(folder / f"{i}.{'png' if i % 2 else 'jpg'}", seed=i)
    return folder


@pytest.fixture
def store(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def chunks_of_three(monkeypatch):
    monkeypatch.setattr(cache, "CHUNK", 3)


@pytest.fixture
def decoded(monkeypatch):
    """Record the names of decoded files. ``decoded.fail`` maps file names to exceptions to raise."""
    real = decoding.decode
    record = types.SimpleNamespace(names=[], fail={})

    def decode(file, *others):
        if file.name in record.fail:
            raise record.fail[file.name]
        record.names.append(file.name)
        return real(file, *others)

    monkeypatch.setattr(cache, "decode", decode)
    return record


def opened(photos, **options):
    return flat_folder(photos, **{"size": 8, "workers": 2, **options})


def everything(images):
    return images.store.load(torch.arange(len(images)))


def kinds(folder):
    return sorted(file.suffix for file in folder.iterdir())


FINISHED = [".json", ".lock", ".u8"]


# The same pixels


def test_cached_images_equal_decoded_images(photos, store, capsys):
    images = opened(photos)
    copy = cached(images, store)
    assert isinstance(copy.store, Cached)
    assert copy.store.size == 8
    assert torch.equal(everything(copy), everything(images))
    assert torch.equal(copy.store.aspect, images.store.aspect)
    assert torch.equal(copy.labels, images.labels)
    assert (copy.names, copy.paths) == (images.names, images.paths)
    assert kinds(store) == FINISHED
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("decoding 10 images, once: 1.92 kB to write to ")


def test_cache_file_holds_squares_in_order(photos, store):
    images = opened(photos)
    cached(images, store)
    (file,) = store.glob("*.u8")
    squares = np.fromfile(file, dtype=np.uint8).reshape(10, 8, 8, 3)
    for i, path in enumerate(images.store.files):
        assert np.array_equal(squares[i], decoding.decode(path, 8))


@pytest.mark.parametrize(
    "index", [[], [4], [9, 0, 3, 3, 7], [2, 3, 4, 5], [5, 4, 3], [0, 2, 4], list(range(10)), [-1, 0, 1]]
)
def test_load_returns_images_in_index_order(photos, store, index):
    images = opened(photos)
    got = cached(images, store).store.load(torch.tensor(index, dtype=torch.int64))
    expected = everything(images)
    assert len(got) == len(index)
    for row, i in enumerate(index):
        assert torch.equal(got[row], expected[i])


def test_load_returns_a_copy(photos, store):
    pixels = cached(opened(photos), store).store
    for index in (torch.arange(4), torch.tensor([3, 1])):
        before = pixels.load(index)
        pixels.load(index).zero_()
        assert torch.equal(pixels.load(index), before)


def test_index_out_of_range_raises_index_error(photos, store):
    pixels = cached(opened(photos), store).store
    for index in (torch.tensor([10]), torch.tensor([3, 12]), torch.tensor([8, 9, 10])):
        with pytest.raises(IndexError):
            pixels.load(index)


def test_images_in_memory_are_not_cached(store):
    pixels = InMemory(torch.zeros(1, 8, 8, 3, dtype=torch.uint8))
    images = ImageSet(pixels, torch.tensor([0]), ("a",), ("1",))
    assert cached(images, store).store is images.store
    assert not store.exists()


# When images are decoded


def test_second_open_decodes_and_writes_nothing(photos, store, decoded, capsys):
    first = everything(cached(opened(photos), store))
    times = {file: file.stat().st_mtime_ns for file in store.iterdir()}
    decoded.names.clear()
    capsys.readouterr()
    assert torch.equal(everything(cached(opened(photos), store)), first)
    assert decoded.names == []
    assert capsys.readouterr().err == ""
    assert {file: file.stat().st_mtime_ns for file in store.iterdir()} == times


def test_changed_file_is_decoded_again(photos, store, decoded):
    before = everything(cached(opened(photos), store))
    write(photos / "3.png", seed=13)
    decoded.names.clear()
    after = everything(cached(opened(photos), store))
    assert decoded.names == ["3.png"]  # the others are copied
    assert torch.equal(after, everything(opened(photos)))
    assert [i for i in range(10) if not torch.equal(before[i], after[i])] == [3]


def test_file_with_new_mtime_is_decoded_again(photos, store, decoded):
    cached(opened(photos), store)
    os.utime(photos / "5.png", ns=(1, 1))
    decoded.names.clear()
    cached(opened(photos), store)
    assert decoded.names == ["5.png"]


def test_added_or_removed_file_gives_new_cache(photos, store, decoded):
    cached(opened(photos), store)
    decoded.names.clear()
    write(photos / "35.png", seed=35)
    more = cached(opened(photos), store)
    assert (len(more), decoded.names) == (11, ["35.png"])
    assert torch.equal(everything(more), everything(opened(photos)))
    (photos / "0.jpg").unlink()
    decoded.names.clear()
    fewer = cached(opened(photos), store)
    assert (len(fewer), decoded.names) == (10, [])
    assert torch.equal(everything(fewer), everything(opened(photos)))
    assert len(list(store.glob("*.u8"))) == 3


def test_each_image_size_has_its_own_cache(photos, store, decoded):
    cached(opened(photos), store)
    decoded.names.clear()
    larger = cached(opened(photos, size=12), store)
    assert len(decoded.names) == 10
    assert torch.equal(everything(larger), everything(opened(photos, size=12)))
    assert len(list(store.glob("*.u8"))) == 2


def test_each_box_has_its_own_cache(photos, store):
    whole = opened(photos)
    box = torch.tensor([[1.0, 2.0, 6.0, 8.0]]).repeat(10, 1)
    boxed = replace(whole, store=replace(whole.store, boxes=box))
    assert not torch.equal(everything(cached(whole, store)), everything(cached(boxed, store)))
    assert torch.equal(everything(cached(boxed, store)), everything(boxed))
    box[4, 3] = 9.0
    assert torch.equal(everything(cached(boxed, store)), everything(boxed))
    assert len(list(store.glob("*.u8"))) == 3


def test_cache_follows_file_order(photos, store, decoded):
    images = opened(photos)
    cached(images, store)
    backwards = replace(images, store=replace(images.store, files=images.store.files[::-1]))
    decoded.names.clear()
    assert torch.equal(everything(cached(backwards, store)), everything(images).flip(0))
    assert decoded.names == []  # copied from the first


def test_foreign_files_in_cache_folder_are_ignored(photos, store):
    store.mkdir()
    (store / "notes.json").write_text("no JSON")
    (store / "list.json").write_text("[1, 2]")
    (store / "other.json").write_text(json.dumps({"format": cache.FORMAT + 1, "size": 8, "stamps": ["a"]}))
    gone = json.dumps({"format": cache.FORMAT, "size": 8, "stamps": ["a", "b"]})
    (store / "gone.json").write_text(gone)
    assert torch.equal(everything(cached(opened(photos), store)), everything(opened(photos)))


# Interrupted, unreadable, damaged


@pytest.mark.usefixtures("chunks_of_three")
def test_interrupted_build_continues(photos, store, decoded, capsys):
    images = opened(photos)
    decoded.fail["7.png"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        cached(images, store)
    assert kinds(store) == [".done", ".json", ".lock", ".partial"]
    decoded.fail.clear()
    decoded.names.clear()
    capsys.readouterr()
    copy = cached(images, store)
    assert sorted(decoded.names) == ["6.jpg", "7.png", "8.jpg", "9.png"]  # two chunks of three were done
    assert torch.equal(everything(copy), everything(images))
    assert kinds(store) == FINISHED
    assert capsys.readouterr().err.startswith("decoding 10 images (6 are already done), once: 768 B")


@pytest.mark.usefixtures("chunks_of_three")
@pytest.mark.parametrize("lost", ["partial", "done"])
def test_build_restarts_if_a_partial_file_is_lost(photos, store, decoded, lost):
    decoded.fail["7.png"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        cached(opened(photos), store)
    (file,) = store.glob(f"*.{lost}")
    file.write_bytes(file.read_bytes()[:-1])
    decoded.fail.clear()
    decoded.names.clear()
    copy = cached(opened(photos), store)
    assert len(decoded.names) == 10
    assert torch.equal(everything(copy), everything(opened(photos)))


@pytest.mark.usefixtures("chunks_of_three")
def test_unreadable_images_are_listed_and_others_are_kept(photos, store, decoded):
    for name in ("1.png", "2.jpg", "5.png", "9.png"):
        decoded.fail[name] = UnreadableError(photos / name, "broken")
    with pytest.raises(
        ValueError,
        match=r"got 4 of 10 that are not: .*1\.png \(broken\), .*2\.jpg .*, .*5\.png .* and 1 more; remove",
    ):
        cached(opened(photos), store)
    assert len(decoded.names) == 6
    assert not list(store.glob("*.u8"))

    decoded.names.clear()
    with pytest.raises(ValueError, match="got 4 of 10"):
        cached(opened(photos), store)
    assert decoded.names == []

    write(photos / "1.png", seed=21)
    write(photos / "2.jpg", seed=22)
    (photos / "5.png").unlink()
    del decoded.fail["1.png"], decoded.fail["2.jpg"], decoded.fail["9.png"]
    copy = cached(opened(photos), store)
    assert sorted(decoded.names) == ["1.png", "2.jpg", "9.png"]
    assert torch.equal(everything(copy), everything(opened(photos)))
    assert kinds(store) == [".json", ".lock", ".lock", ".u8"]  # what was left unfinished is gone


def test_missing_file_is_listed(photos, store):
    images = opened(photos)
    (photos / "4.jpg").unlink()
    with pytest.raises(ValueError, match=r"got 1 of 10 that are not: \S*4\.jpg \(No such file .*\); remove"):
        cached(images, store)


@pytest.mark.usefixtures("chunks_of_three")
def test_unfinished_cache_of_other_images_is_kept(photos, store, decoded, tmp_path):
    decoded.fail["7.png"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        cached(opened(photos), store)
    (tmp_path / "others").mkdir()
    write(tmp_path / "others" / "0.png", seed=30)
    cached(opened(tmp_path / "others"), store)
    assert kinds(store) == sorted([".done", ".json", ".lock", ".partial", *FINISHED])


@pytest.mark.parametrize("length", [0, 100, 1919, 1921])
def test_damaged_cache_is_rebuilt(photos, store, capsys, length):
    expected = everything(cached(opened(photos), store))
    (file,) = store.glob("*.u8")
    os.truncate(file, length)
    capsys.readouterr()
    assert torch.equal(everything(cached(opened(photos), store)), expected)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert said[0] == f"{file} is damaged (its size is wrong) and is built again"


# Disk space


def test_too_little_disk_space_is_reported_before_writing(photos, store, monkeypatch, decoded):
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda folder: types.SimpleNamespace(free=1919))
    message = r"needs 1.92 kB in \S*store, got 1.92 kB .*; set DIVCONQ_CACHE .* --no-cache"
    with pytest.raises(ValueError, match=message):
        cached(opened(photos), store)
    assert decoded.names == []
    assert kinds(store) == [".lock"]
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda folder: types.SimpleNamespace(free=1920))
    assert len(everything(cached(opened(photos), store))) == 10


@pytest.mark.usefixtures("chunks_of_three")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_leaves_no_partial_cache(photos, store, monkeypatch, code):
    images, real, calls = opened(photos), os.fsync, []

    def fsync(descriptor):
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(code, os.strerror(code))
        real(descriptor)

    monkeypatch.setattr(cache.os, "fsync", fsync)
    with pytest.raises(ValueError, match=r"store was full before .*; set DIVCONQ_CACHE .* --no-cache"):
        cached(images, store)
    assert kinds(store) == [".lock"]
    assert torch.equal(everything(cached(opened(photos), store)), everything(opened(photos)))


def test_completely_full_disk_leaves_no_files(photos, store, monkeypatch):
    def write(file, content):
        file.with_suffix(".done.new").write_bytes(content[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache, "_replace", write)
    with pytest.raises(ValueError, match="store was full"):
        cached(opened(photos), store)
    assert kinds(store) == [".lock"]


LIMITED = """
import resource, sys
from pathlib import Path
from divconq.data.images import cache, workers
from divconq.data.sources.folder import flat_folder

store, workers.MIN_FOR_PROCESSES = Path(sys.argv[2]), 1
photos = flat_folder(Path(sys.argv[1]), size=8, workers=int(sys.argv[3]))
for most in (0, 5, 100, 1919):
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    try:
        cache.cached(photos, store)
    except ValueError as error:
        print([file.suffix for file in store.iterdir()], error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the system has no such limit")
@pytest.mark.parametrize("workers", ["1", "2"], ids=["in this process", "in others"])
def test_file_size_limit_leaves_no_partial_cache(photos, store, workers):
    command = [sys.executable, "-c", LIMITED, str(photos), str(store), workers]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == 4 * [
        f"['.lock'] {store} was full before the cache was complete, so the partial cache is removed; {cache.REMEDY}"
    ]
    assert torch.equal(everything(cached(opened(photos), store)), everything(opened(photos)))


@pytest.fixture
def read_only(monkeypatch):
    """Make a folder read-only, even for root."""
    folders = []
    real = Path.open

    def open_(file, mode="r", *others, **more):
        if mode != "rb" and mode != "r" and any(folder in file.parents for folder in folders):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(file))
        return real(file, mode, *others, **more)

    monkeypatch.setattr(Path, "open", open_)
    return folders.append


def test_read_only_cache_folder_is_an_error(photos, store, read_only):
    store.mkdir()
    read_only(store)
    with pytest.raises(
        ValueError,
        match=r"cache in \S*store cannot be used \(.*Read-only .*\); set DIVCONQ_CACHE .* --no-cache",
    ):
        cached(opened(photos), store)
    assert list(store.iterdir()) == []


def test_complete_cache_in_read_only_folder_is_used(photos, store, read_only):
    expected = everything(cached(opened(photos), store))
    read_only(store)
    assert torch.equal(everything(cached(opened(photos), store)), expected)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_cache_folder_without_write_permission_is_an_error(photos, store):
    store.mkdir(mode=0o500)
    with pytest.raises(ValueError, match=r"cannot be used \(.*Permission denied.*\); set DIVCONQ_CACHE"):
        cached(opened(photos), store)


# Decoded by other processes


@pytest.fixture
def in_processes(monkeypatch):
    monkeypatch.setattr(workers, "MIN_FOR_PROCESSES", 1)


@pytest.mark.usefixtures("in_processes", "chunks_of_three")
def test_processes_write_the_same_images(photos, store):
    images = opened(photos)
    assert torch.equal(everything(cached(images, store)), everything(images))
    assert kinds(store) == [".json", ".lock", ".u8"]


@pytest.mark.usefixtures("in_processes", "chunks_of_three")
def test_worker_processes_list_unreadable_images_and_keep_others(photos, store, decoded):
    images = opened(photos)
    decoded.fail["3.png"] = UnreadableError(photos / "3.png", "truncated")
    with pytest.raises(
        ValueError, match=r"got 1 of 10 .*3\.png \(truncated\); remove .*, the others are kept"
    ):
        cached(images, store)
    decoded.fail.clear()
    workers.MIN_FOR_PROCESSES = 100
    assert torch.equal(everything(cached(images, store)), everything(images))
    assert decoded.names == ["3.png"]


SLOW = """
import sys, time
from pathlib import Path
from divconq.data.images import cache, workers
from divconq.data.sources.folder import flat_folder

real, cache.CHUNK, workers.MIN_FOR_PROCESSES, workers.CHUNK = cache.decode, 1, 1, 1

def slow(*about):
    time.sleep(0.2)
    return real(*about)

cache.decode = slow
cache.cached(flat_folder(Path(sys.argv[1]), size=8, workers=2), Path(sys.argv[2]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there are threads")
def test_killed_parallel_build_continues(photos, store, decoded):
    images = opened(photos)
    build = subprocess.Popen([sys.executable, "-c", SLOW, str(photos), str(store)], stderr=subprocess.DEVNULL)
    while not any(file.read_bytes().count(1) >= 3 for file in store.glob("*.done")):
        assert build.poll() is None
    build.kill()
    build.wait()
    assert torch.equal(
        everything(cached(images, store)), everything(images)
    )  # once its processes have noticed
    assert 0 < len(decoded.names) <= 7


# Changes while a process runs


def test_file_changed_during_decoding_is_not_cached(photos, store, monkeypatch, decoded):
    """The file may be incomplete, so it is not cached and is read again next time."""
    images, before = opened(photos), (photos / "3.png").read_bytes()
    real = cache.decode

    def decode(file, *others):
        image = real(file, *others)
        if file.name == "3.png":
            write(file, seed=13)
        return image

    monkeypatch.setattr(cache, "decode", decode)
    with pytest.raises(
        ValueError, match=r"got 1 of 10 .*3\.png \(it was changed while it was read: start again\); remove"
    ):
        cached(images, store)
    assert not list(store.glob("*.u8"))
    assert (photos / "3.png").read_bytes() != before

    monkeypatch.setattr(cache, "decode", real)
    decoded.names.clear()
    assert torch.equal(everything(cached(opened(photos), store)), everything(opened(photos)))
    assert decoded.names == ["3.png"]


@pytest.mark.parametrize("change", ["rewritten", "removed", "added", "all removed"])
def test_open_cache_is_not_affected_by_file_changes(photos, store, change):
    images = opened(photos)
    used, expected = cached(images, store), everything(images)
    if change == "rewritten":
        write(photos / "3.png", seed=13)
    elif change == "added":
        write(photos / "35.png", seed=35)
    else:
        for file in photos.iterdir() if change == "all removed" else [photos / "3.png"]:
            file.unlink()
    assert torch.equal(everything(used), expected)
    if change != "all removed":
        assert torch.equal(everything(cached(opened(photos), store)), everything(opened(photos)))
        assert torch.equal(everything(used), expected)


def test_open_cache_survives_its_deletion(photos, store):
    used, expected = cached(opened(photos), store), everything(opened(photos))
    for file in store.iterdir():
        file.unlink()
    assert torch.equal(everything(used), expected)
    again = cached(opened(photos), store)
    assert torch.equal(everything(again), expected)


@pytest.mark.usefixtures("chunks_of_three")
def test_restarted_build_does_not_truncate_mapped_file(photos, store, decoded):
    """Truncating a mapped file would kill the process that reads it."""
    decoded.fail["7.png"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        cached(opened(photos), store)
    (partial,), (done,) = store.glob("*.partial"), store.glob("*.done")
    looked_at = np.memmap(partial, np.uint8, "r")
    before = looked_at.copy()
    done.unlink()
    decoded.fail.clear()
    cached(opened(photos), store)
    assert np.array_equal(looked_at, before)


def test_missing_file_without_cache_is_named(photos):
    images = opened(photos)
    (photos / "4.jpg").unlink()
    with pytest.raises(ValueError, match=r"4\.jpg cannot be decoded \(No such file or directory\)"):
        everything(images)


def test_cache_folder_that_cannot_be_created_is_an_error(photos, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match=r"cache in \S*store cannot be used \(.*\); set DIVCONQ_CACHE"):
        cached(opened(photos), tmp_path / "file" / "store")


def test_units():
    counts = [0, 999, 1000, 196_608, 2.5e6, 1.15e9, 4.3e12]
    assert [cache._units(count) for count in counts] == [
        *("0 B", "999 B", "1 kB", "197 kB", "2.5 MB", "1.1 GB", "4,300.0 GB")
    ]


# Cache folder


def test_cache_folder_comes_from_environment(photos, tmp_path, monkeypatch):
    monkeypatch.setenv("DIVCONQ_CACHE", str(tmp_path / "mine"))
    cached(opened(photos))
    assert kinds(tmp_path / "mine") == sorted([*FINISHED, ".sizes"])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("DIVCONQ_CACHE")
    assert cache_folder() == tmp_path / "xdg" / "divconq"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "divconq"
    monkeypatch.setenv("DIVCONQ_CACHE", "~/there")
    assert cache_folder() == tmp_path / "there"


# Two processes

SLOWLY = """
import sys, time
from pathlib import Path
from divconq.data.images import cache
from divconq.data.sources.folder import flat_folder

real = cache.decode
def decode(file, *others):
    print("decoded", flush=True)
    time.sleep(float(sys.argv[3]))
    return real(file, *others)
cache.decode = decode
images = cache.cached(flat_folder(Path(sys.argv[1]), size=8, workers=1), Path(sys.argv[2]))
print(len(images.store.images), "images")
"""


def start(photos, store, seconds):
    return subprocess.Popen(
        [sys.executable, "-c", SLOWLY, str(photos), str(store), str(seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_processes_build_one_cache(photos, store):
    processes = [start(photos, store, 0.1) for _ in range(2)]
    results = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], results
    assert sum(out.count("decoded") for out, _ in results) == 10
    assert all(out.endswith("10 images\n") for out, _ in results)
    assert kinds(store) == FINISHED
    assert torch.equal(everything(cached(opened(photos), store)), everything(opened(photos)))


def test_second_process_waits_and_prints_message(photos, store, capsys, decoded):
    first = start(photos, store, 0.2)
    assert first.stdout.readline() == "decoded\n"
    copy = cached(opened(photos), store)
    assert first.communicate(timeout=60)[0].endswith("10 images\n")
    assert decoded.names == []
    assert capsys.readouterr().err == "another process is building this cache; waiting for it\n"
    assert torch.equal(everything(copy), everything(opened(photos)))


def test_lock_of_killed_process_is_released(photos, store, capsys):
    first = start(photos, store, 60)
    assert first.stdout.readline() == "decoded\n"
    first.kill()
    first.communicate()
    assert [file.suffix for file in store.glob("*.lock")] == [".lock"]
    assert torch.equal(everything(cached(opened(photos), store)), everything(opened(photos)))
    assert "waiting" not in capsys.readouterr().err


def test_subset_uses_cache_of_whole_set(photos, store):
    images = opened(photos)
    some = cached(subset(images, torch.arange(10) % 3 == 0), store)
    assert torch.equal(everything(some), everything(images)[::3])
    assert isinstance(some.store.source, Cached)


def test_older_cache_is_used_for_jpegs_only_and_deleted(photos, store, decoded, monkeypatch):
    """An older version decoded some files of other formats wrong."""
    expected = everything(opened(photos))
    with monkeypatch.context() as older:
        for module in (cache, cache_reuse):
            older.setattr(module, "FORMAT", cache_reuse.JPEG_FORMAT)
        real = cache.decode
        older.setattr(cache, "decode", lambda file, *others: real(file, *others) * (file.suffix == ".jpg"))
        assert not torch.equal(everything(cached(opened(photos), store)), expected)
        (old,) = store.glob("*.u8")
    decoded.names.clear()
    assert torch.equal(everything(cached(opened(photos), store)), expected)
    assert sorted(decoded.names) == [f"{i}.png" for i in (1, 3, 5, 7, 9)]
    assert kinds(store) == sorted([*FINISHED, ".lock"])
    assert not old.exists()


# Home directory and permissions


@pytest.fixture
def homeless(monkeypatch):
    """The user has no home directory, as in some containers."""

    def home():
        raise RuntimeError("Could not determine home directory.")

    for name in ("DIVCONQ_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", home)


@pytest.mark.usefixtures("homeless")
def test_unknown_home_directory_is_an_error_only_for_the_cache(photos):
    images = opened(photos)
    assert len(everything(images)) == len(everything(reuse_cached(images))) == 10
    assert len(set(content_hashes(images.store.files, workers=1))) == 10
    with pytest.raises(
        ValueError, match=r"the home directory is unknown; set DIVCONQ_CACHE to a folder .* --no-cache"
    ):
        cached(images)


@pytest.mark.parametrize("home", ["/proc", "{file}/below"])
def test_home_directory_that_cannot_be_written_is_an_error_only_for_the_cache(
    photos, tmp_path, monkeypatch, home
):
    (tmp_path / "file").touch()
    for name in ("DIVCONQ_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", home.format(file=tmp_path / "file"))
    images = opened(photos)
    assert len(everything(images)) == len(everything(reuse_cached(images))) == 10
    with pytest.raises(ValueError, match=r"the cache in .*divconq cannot be used \(.*\); set DIVCONQ_CACHE"):
        cached(images)


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o022, 0o644)])
def test_files_have_the_permissions_of_the_umask(photos, store, monkeypatch, umask, mode):
    monkeypatch.setenv("DIVCONQ_CACHE", str(store))
    before = os.umask(umask)
    try:
        content_hashes(opened(photos).store.files, workers=1)
        cached(opened(photos))
    finally:
        os.umask(before)
    modes = {file.suffix: file.stat().st_mode & 0o777 for file in store.iterdir()}
    assert modes == dict.fromkeys([*FINISHED, ".contents", ".sizes"], mode)
