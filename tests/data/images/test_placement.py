import os
from pathlib import Path

import numpy as np
import pytest
import torch

from divconq.data.dataset import ImageSet, InMemory, Subset, subset
from divconq.data.images import placement as memory
from divconq.data.images.cache import Cached
from divconq.data.images.files import ImageFiles
from divconq.data.images.placement import Pinned, move_to_device
from divconq.data.sources.demo import demo_dataset

SIDE = 8
BYTES = SIDE * SIDE * 3
PLENTY = 10**12


def pixels(n, seed=0):
    return torch.randint(
        256, (n, SIDE, SIDE, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8
    )


def image_set(store, n):
    return ImageSet(store, torch.arange(n) % 2, ("a", "b"), tuple(f"{i}.jpg" for i in range(n)))


def cached_set(n, seed=0):
    aspect = 0.5 + torch.rand(n, generator=torch.Generator().manual_seed(seed))
    return image_set(Cached(pixels(n, seed).numpy(), aspect), n)


@pytest.fixture
def room(monkeypatch):
    """Return a function that sets the free memory of the device and of the host."""

    def free(on_device, in_main_memory):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (on_device, PLENTY))
        monkeypatch.setattr(memory, "_free_memory", lambda: in_main_memory)

    return free


@pytest.fixture
def no_gpu_needed(monkeypatch):
    """Replace GPU memory and pinned memory by main memory."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, dtype, **where: empty(*shape, dtype=dtype))


def where(images, was):
    if images is was:
        return "map"
    return "pinned" if isinstance(images.store, Pinned) else "device"


def assert_same(images, was):
    order = torch.randperm(len(was), generator=torch.Generator().manual_seed(1))
    assert torch.equal(images.store.load(order).cpu(), was.store.load(order))
    assert torch.equal(images.store.aspect, was.store.aspect)
    assert images.store.size == was.store.size
    assert images.labels is was.labels
    assert images.paths is was.paths


def test_on_cpu_sets_are_unchanged():
    sets = [cached_set(3), cached_set(4)]
    assert all(
        after is before for after, before in zip(move_to_device(sets, torch.device("cpu")), sets, strict=True)
    )


def test_pinned_images_load_by_index():
    images = pixels(5)
    store = Pinned(images, torch.ones(5), torch.device("cpu"))
    index = torch.tensor([4, 0, 4])
    assert torch.equal(store.load(index), images[index])
    assert store.size == SIDE


def test_free_memory():
    if Path("/proc/meminfo").exists():
        assert 0 < memory._free_memory() < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    else:
        assert memory._free_memory() == 0


def test_free_memory_is_zero_if_unknown(monkeypatch):
    def fails(path):
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", fails)
    assert memory._free_memory() == 0
    monkeypatch.setattr(Path, "read_text", lambda path: "MemTotal: 8 kB\n")
    assert memory._free_memory() == 0
    monkeypatch.setattr(Path, "read_text", lambda path: "MemTotal: 8 kB\nMemAvailable:  5 kB\n")
    assert memory._free_memory() == 5 * 1024


@pytest.mark.usefixtures("no_gpu_needed")
@pytest.mark.parametrize(
    ("on_device", "in_main_memory", "expected"),
    [
        (PLENTY, PLENTY, ["device", "device", "device"]),
        (0, PLENTY, ["pinned", "pinned", "pinned"]),
        (0, 0, ["map", "map", "map"]),
        (2 * 100 * BYTES, 0, ["device", "map", "map"]),  # half of it is used
        (2 * 100 * BYTES - 1, 0, ["map", "device", "device"]),  # the first does not fit, the others do
        (2 * 130 * BYTES, PLENTY, ["device", "pinned", "device"]),
        (0, 2 * 2**15, ["pinned", "map", "map"]),  # 100 images are 19,200 bytes: 2 ** 15 when they are pinned
        (0, 2 * 2**15 - 1, ["map", "pinned", "pinned"]),
        (0, 2 * (2**14 + 2**13) - 1, ["map", "pinned", "map"]),
    ],
)
def test_sets_are_placed_in_order(room, on_device, in_main_memory, expected):
    room(on_device, in_main_memory)
    sets = [cached_set(100, 1), cached_set(60, 2), cached_set(30, 3)]
    moved = move_to_device(sets, torch.device("cuda"))
    assert [where(after, before) for after, before in zip(moved, sets, strict=True)] == expected
    for after, before in zip(moved, sets, strict=True):
        assert_same(after, before)


@pytest.mark.usefixtures("no_gpu_needed")
def test_share_limits_use_of_free_memory(room):
    room(1000 * BYTES, 0)
    sets = [cached_set(100)]
    for share, expected in ((0.1, "device"), (0.0999, "map")):
        (moved,) = move_to_device(sets, torch.device("cuda"), share=share)
        assert where(moved, sets[0]) == expected


@pytest.mark.usefixtures("no_gpu_needed")
def test_only_the_subset_is_copied(room):
    everything = cached_set(100)
    chosen = subset(subset(everything, torch.arange(100) % 3 != 0), torch.arange(66) % 2 == 0)
    assert isinstance(chosen.store, Subset)
    room(2 * 33 * BYTES, 0)
    (moved,) = move_to_device([chosen], torch.device("cuda"))
    assert isinstance(moved.store, InMemory)
    assert len(moved.store.images) == 33
    assert_same(moved, chosen)


@pytest.mark.usefixtures("no_gpu_needed")
def test_images_in_memory_move_and_image_files_do_not(room):
    room(PLENTY, PLENTY)
    train = demo_dataset(seed=0).train
    files = image_set(ImageFiles((Path("1.jpg"), Path("2.jpg")), torch.ones(2), SIDE, 1), 2)
    some = subset(files, torch.tensor([True, False]))
    moved = move_to_device([train, files, some], torch.device("cuda"))
    assert where(moved[0], train) == "device"
    assert_same(moved[0], train)
    assert moved[1] is files
    assert moved[2] is some


@pytest.mark.usefixtures("no_gpu_needed")
def test_copy_in_several_blocks(room, monkeypatch):
    monkeypatch.setattr(memory, "ROWS", 7)
    room(PLENTY, 0)
    images = cached_set(30)
    (moved,) = move_to_device([images], torch.device("cuda"))
    assert_same(moved, images)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("free", "expected"), [((PLENTY, PLENTY), "device"), ((0, PLENTY), "pinned"), ((0, 0), "map")]
)
@pytest.mark.parametrize("chosen", [False, True])
def test_placement_depends_on_free_memory(room, free, expected, chosen):
    images = cached_set(50)
    images = subset(images, torch.arange(50) % 3 == 0) if chosen else images
    room(*free)
    (moved,) = move_to_device([images], torch.device("cuda"))
    assert where(moved, images) == expected
    assert_same(moved, images)
    assert not moved.store.aspect.is_cuda
    if expected != "map":
        assert moved.store.images.is_cuda == (expected == "device")
        assert moved.store.images.is_pinned() == (expected == "pinned")
        assert moved.store.load(torch.tensor([7, 0])).is_cuda


@pytest.mark.gpu
def test_pinned_load_does_not_wait_for_the_copy():
    images = pixels(40)
    store = Pinned(images.pin_memory(), torch.ones(40), torch.device("cuda"))
    index = torch.tensor([3, 39, 3, 0])
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = store.load(index)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert np.array_equal(got.cpu().numpy(), images[index].numpy())
