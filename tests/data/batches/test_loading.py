import threading
from dataclasses import replace

import pytest
import torch

from divconq.data.batches.augmentation import AUGMENTATIONS, draw, make_augmentation
from divconq.data.batches.loading import read_ahead, training_batches, work_ahead
from divconq.data.batches.sampler import EpochPlan
from divconq.data.batches.transforms import augment
from divconq.data.dataset import ImageSet, InMemory, subset
from divconq.data.images import placement as memory
from divconq.data.images.cache import Cached
from divconq.data.images.placement import Pinned, move_to_device

CPU = torch.device("cpu")
SIDE, SIZE, RESIZE = 40, 24, 32
SIZES = {"size": SIZE, "resize": RESIZE}


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def images_of(n=30, *, as_map=True):
    """Return smooth pictures, so rounding makes no large difference."""
    coarse = torch.rand(n, 3, 6, 6, generator=seeded(0))
    smooth = torch.nn.functional.interpolate(coarse, size=(SIDE, SIDE), mode="bicubic").clamp(0, 1)
    pixels = (255 * smooth).byte().permute(0, 2, 3, 1).contiguous()
    aspect = 0.6 + torch.rand(n, generator=seeded(1))
    store = Cached(pixels.numpy(), aspect) if as_map else InMemory(pixels, aspect)
    labels = torch.arange(n) % 5
    return ImageSet(store, labels, tuple("abcde"), tuple(f"{i}.jpg" for i in range(n)))


def plan_of(steps=6, batch=8, n=30):
    indices = torch.randint(n, (steps, batch), generator=seeded(2))
    return EpochPlan(torch.arange(steps) % 3, indices, left_out=0, without_positive=0)


def plain_loop(images, plan, changes, seed):
    """Yield the expected batches, one after the other."""
    generator, batches = seeded(seed), []
    for cluster, index in plan:
        pixels, aspect = images.store.load(index), images.store.aspect[index]
        draws = draw(len(index), changes, generator=generator)
        batches.append((augment(pixels, aspect, draws, SIZE, RESIZE), images.labels[index], cluster))
    return batches


# On any device


@pytest.mark.parametrize("name", AUGMENTATIONS)
@pytest.mark.parametrize("as_map", [True, False])
def test_batches_equal_plain_loop(name, as_map):
    images, plan, changes = images_of(as_map=as_map), plan_of(), make_augmentation(name, "random_resized")
    batches = list(training_batches(images, plan, changes, seed=5, device=CPU, **SIZES))
    expected = plain_loop(images, plan, changes, 5)
    assert len(batches) == len(expected) == 6
    for (x, y, cluster), (other, labels, number) in zip(batches, expected, strict=True):
        assert torch.equal(x, other)
        assert torch.equal(y, labels)
        assert cluster.shape == ()
        assert int(cluster) == number


@pytest.mark.parametrize("name", AUGMENTATIONS)
@pytest.mark.parametrize("crop", ["random", "random_resized"])
def test_start_skips_steps_without_reading_their_images(name, crop):
    read = []

    class Store(InMemory):
        def load(self, index):
            read.append(index.tolist())
            return super().load(index)

    images, plan, changes = images_of(as_map=False), plan_of(), make_augmentation(name, crop)
    images = replace(images, store=Store(images.store.images, images.store.aspect))
    whole = list(training_batches(images, plan, changes, seed=5, device=CPU, **SIZES))
    for start in range(7):
        read.clear()
        rest = list(training_batches(images, plan, changes, seed=5, device=CPU, start=start, **SIZES))
        assert read == plan.indices[start:].tolist()
        assert len(rest) == 6 - start
        for batch, expected in zip(rest, whole[start:], strict=True):
            assert all(map(torch.equal, batch, expected))


def test_subset_keeps_labels_and_aspects():
    images = subset(images_of(), torch.arange(30) % 3 == 0)
    plan = plan_of(n=10)
    batches = list(training_batches(images, plan, AUGMENTATIONS["none"], seed=5, device=CPU, **SIZES))
    for (x, y, _), (other, labels, _) in zip(
        batches, plain_loop(images, plan, AUGMENTATIONS["none"], 5), strict=True
    ):
        assert torch.equal(x, other)
        assert torch.equal(y, labels)


def test_seeds_give_different_batches():
    images, plan = images_of(), plan_of()
    first, again, other = (
        torch.stack(
            [
                x
                for x, _, _ in training_batches(
                    images, plan, AUGMENTATIONS["standard"], seed=seed, device=CPU, **SIZES
                )
            ]
        )
        for seed in (5, 5, 6)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_view_replaces_augment():
    seen = []

    def view(pixels, aspect, draws, size, resize):
        seen.append((pixels.shape, len(aspect), size, resize))
        return pixels.float().mean(dim=(1, 2, 3))

    images, plan = images_of(), plan_of(steps=2)
    batches = list(
        training_batches(images, plan, AUGMENTATIONS["none"], seed=0, device=CPU, view=view, **SIZES)
    )
    assert seen == 2 * [((8, SIDE, SIDE, 3), 8, SIZE, RESIZE)]
    for (x, _, _), index in zip(batches, plan.indices, strict=True):
        assert torch.equal(x, images.store.load(index).float().mean(dim=(1, 2, 3)))


def test_next_batch_is_read_in_background():
    second = threading.Event()

    class Store(InMemory):
        def load(self, index):
            if 1 in index:
                second.set()
            return super().load(index)

    store = Store(torch.arange(3, dtype=torch.uint8).reshape(3, 1, 1, 1).expand(3, 2, 2, 3))
    reading = read_ahead(store, [torch.tensor([i]) for i in range(3)], CPU)
    assert next(reading).unique().tolist() == [0]
    assert second.wait(timeout=10), "without asking for it"
    assert [images.unique().tolist() for images in reading] == [[1], [2]]


def test_read_ahead_without_batches():
    assert list(read_ahead(images_of().store, [], CPU)) == []


def test_read_error_is_raised():
    class Broken(InMemory):
        def load(self, index):
            raise ValueError("no such image")

    store = Broken(torch.zeros(3, 2, 2, 3, dtype=torch.uint8))
    with pytest.raises(ValueError, match="no such image"):
        list(read_ahead(store, [torch.tensor([0]), torch.tensor([1])], CPU))


# On a GPU


@pytest.fixture
def stores(monkeypatch):
    """Return the same images on the device, in pinned memory and in the memory map."""
    images, found = images_of(), {}
    for name, free in (("device", (10**12, 0)), ("pinned", (0, 10**12)), ("map", (0, 0))):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free[0], 10**12))
        monkeypatch.setattr(memory, "_free_memory", lambda free=free: free[1])
        (found[name],) = move_to_device([images], torch.device("cuda"))
    assert found["device"].store.images.is_cuda
    assert isinstance(found["pinned"].store, Pinned)
    assert isinstance(found["map"].store, Cached)
    return found


@pytest.mark.gpu
@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_batches_do_not_depend_on_placement(stores, name):
    plan, changes = plan_of(), make_augmentation(name, "random_resized")
    expected = plain_loop(images_of(), plan, changes, 5)
    batches = {
        where: [
            tuple(part.clone() for part in batch)
            for batch in training_batches(images, plan, changes, seed=5, device=torch.device("cuda"), **SIZES)
        ]
        for where, images in stores.items()
    }
    for on_device, pinned, mapped, (x, labels, cluster) in zip(*batches.values(), expected, strict=True):
        for a, b, c in zip(on_device, pinned, mapped, strict=True):
            assert a.is_cuda
            assert torch.equal(a, b)
            assert torch.equal(a, c)
        tolerance = 4e-3 if changes.strength[3] else 2e-3  # hues, up to 6, are less fine in float16
        assert (on_device[0].float().cpu() - x).abs().max() < tolerance
        assert torch.equal(on_device[1].cpu(), labels)
        assert int(on_device[2]) == cluster


@pytest.mark.gpu
@pytest.mark.parametrize("where", ["device", "pinned", "map"])
def test_batches_are_not_overwritten_while_in_use(stores, where):
    plan, changes = plan_of(steps=20, batch=16), make_augmentation("geom+color", "random_resized")
    device = torch.device("cuda")
    work = torch.rand(4096, 4096, device=device)
    sums, labels, clusters = [], [], []
    for x, y, cluster in training_batches(stores[where], plan, changes, seed=5, device=device, **SIZES):
        for _ in range(8):  # the host is far ahead by now
            work = work @ work / 4096
        sums.append(x.double().sum(dim=(1, 2, 3)) + 0 * work[0, 0])
        labels.append(y)
        clusters.append(cluster)
    generator = seeded(5)
    for index, found in zip(plan.indices, sums, strict=True):
        draws = draw(len(index), changes, generator=generator).to(device)
        pixels, aspect = images_of().store.load(index), images_of().store.aspect[index]
        expected = augment(pixels.to(device), aspect.to(device), draws, SIZE, RESIZE)
        assert torch.allclose(found, expected.double().sum(dim=(1, 2, 3)), rtol=1e-6)
    assert torch.equal(torch.stack(labels).cpu(), stores[where].labels[plan.indices])
    assert torch.equal(torch.stack(clusters).cpu(), plan.clusters)


@pytest.mark.gpu
def test_work_ahead_waits_until_memory_is_free():
    """The batches reuse two buffers, as the allocator would."""
    device = torch.device("cuda")
    places = torch.zeros(2, 1 << 20, device=device)
    work = torch.rand(4096, 4096, device=device)

    def batches():
        for i in range(20):
            yield places[i % 2].fill_(i)

    sums = []
    for x in work_ahead(batches(), device):
        for _ in range(8):
            work = work @ work / 4096
        sums.append(x.mean() + 0 * work[0, 0].nan_to_num())
    assert torch.stack(sums).tolist() == list(range(20))


@pytest.mark.gpu
@pytest.mark.parametrize("where", ["device", "pinned"])
def test_epoch_does_not_synchronise_with_device(stores, where):
    plan, changes = plan_of(steps=10), make_augmentation("color-heavy", "random_resized")
    batches = training_batches(stores[where], plan, changes, seed=5, device=torch.device("cuda"), **SIZES)
    next(batches)
    torch.cuda.set_sync_debug_mode("error")
    try:
        rest = [x.shape for x, _, _ in batches]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert rest == 9 * [(8, 3, SIZE, SIZE)]


@pytest.mark.gpu
def test_two_epochs_in_a_row(stores):
    plan, changes = plan_of(), AUGMENTATIONS["standard"]
    images = replace(stores["device"])
    epochs = [
        [
            x.clone()
            for x, _, _ in training_batches(
                images, plan, changes, seed=seed, device=torch.device("cuda"), **SIZES
            )
        ]
        for seed in (5, 6, 5)
    ]
    assert all(torch.equal(a, b) for a, b in zip(epochs[0], epochs[2], strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(epochs[0], epochs[1], strict=True))
