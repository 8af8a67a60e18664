import dataclasses
import os
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from analysis.made_runs import SETTINGS, made_images
from conftest import write_photos
from divconq.analysis import embedding_cache as module
from divconq.analysis import read_run
from divconq.analysis.embedding_cache import cache_key, cached_embeddings
from divconq.analysis.study import images_of
from divconq.data.batches.views import test_view as see_test_view
from divconq.data.dataset import subset
from divconq.runs import checkpoints
from divconq.train import train


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with held-out classes on its own photos."""
    folder = tmp_path_factory.mktemp("embeddings")
    photos = write_photos(folder / "photos", classes=8, images=4)
    config = SETTINGS.replace(data=str(photos), epochs=1, k_max=1, val_classes=1, batch=4)
    train(config, folder / "run")
    return folder


@pytest.fixture
def run(trained, tmp_path):
    shutil.copytree(trained / "run", tmp_path / "run")
    return read_run(tmp_path / "run")


def cache(record):
    return record.folder / "analysis" / "embeddings-last.safetensors"


def made(record):
    return cached_embeddings(record, record.snapshot(), images_of(record))


@pytest.fixture
def passes(monkeypatch):
    """The number of images in each pass of the network."""
    seen, embed_images = [], module.embed_images

    def counted(config, model, images, **options):
        seen.append(len(images))
        return embed_images(config, model, images, **options)

    monkeypatch.setattr(module, "embed_images", counted)
    return seen


def test_embeddings_are_unit_vectors_without_masks(run):
    images, config, model = images_of(run), run.config, run.snapshot().network
    found = made(run)
    assert list(found) == ["train", "test"]
    assert len(found["train"]) == 12, "one of four training classes is held out"
    for split, some in images.items():
        pixels = some.store.load(torch.arange(len(some)))
        with torch.no_grad():
            f = model(see_test_view(pixels, some.store.aspect, config.data.image_size, config.data.resize))
        assert found[split].dtype == torch.float32
        torch.testing.assert_close(found[split], F.normalize(f), atol=1e-5, rtol=0)


def test_embeddings_are_computed_once(run, passes):
    first = made(run)
    assert passes == [12, 16]
    again = made(run)
    assert passes == [12, 16]
    assert all(torch.equal(first[split], again[split]) for split in first)
    assert [file.name for file in cache(run).parent.iterdir()] == [cache(run).name]


def test_the_best_epoch_has_its_own_cache(run, passes):
    made(run)
    snapshot = run.snapshot("best")
    cached_embeddings(run, snapshot, images_of(run), "best")
    cached_embeddings(run, run.snapshot(), images_of(run))
    assert passes == [12, 16, 12, 16]


def test_other_weights_are_detected(run, passes):
    made(run)
    state = checkpoints.load(run.folder)
    state["model"]["head.bias"] += 1
    checkpoints.save(run.folder, "last", state)
    found = made(run)
    assert len(passes) == 4
    assert all(torch.equal(found[split], made(run)[split]) for split in found)


@pytest.mark.parametrize("change", [{"image_size": 12}, {"resize": 24}, {"decode_size": 24}])
def test_other_settings_are_detected(run, passes, change):
    made(run)
    other = dataclasses.replace(run, config=run.config.replace(**change))
    made(other)
    assert len(passes) == 4


def test_other_images_are_detected(run, passes):
    made(run)
    images = images_of(run)
    fewer = subset(images["train"], images["train"].labels > 0)
    cached_embeddings(run, run.snapshot(), {**images, "train": fewer})
    assert passes == [12, 16, 8, 16]


def test_a_changed_image_file_is_detected(run, passes):
    made(run)
    image = Path(run.config.data.name) / images_of(run)["test"].paths[3]
    before = image.read_bytes()
    os.utime(image)
    made(run)
    assert len(passes) == 2, "only its time has changed"
    try:
        Image.new("RGB", (24, 24), "red").save(image)
        cached_embeddings(run, run.snapshot(), images_of(run, accept_changes=True))
        assert len(passes) == 4
    finally:
        image.write_bytes(before)


class OtherStore:
    """A store of somebody else: only what the protocol asks for."""

    def __init__(self, images):
        self.images, self.aspect = images, torch.ones(len(images))
        self.size = images.shape[1]

    def load(self, index):
        return self.images[index]


def test_images_of_an_unknown_store_are_identified_by_their_pixels(run):
    snapshot, images = run.snapshot(), made_images([0, 1, 1])
    pixels = images.store.images
    other = dataclasses.replace(images, store=OtherStore(pixels.clone()))
    key = cache_key(run.config, snapshot, {"test": other})
    assert key == cache_key(run.config, snapshot, {"test": images})
    other.store.images[2, 0, 0, 0] += 1
    assert key != cache_key(run.config, snapshot, {"test": other})


def test_images_in_memory_are_identified_by_their_pixels(run):
    snapshot, images = run.snapshot(), made_images([0, 1, 1])
    key = cache_key(run.config, snapshot, {"test": images})
    assert key == cache_key(run.config, snapshot, {"test": made_images([0, 1, 1])})
    same = subset(images, torch.tensor([True, True, True]))
    assert key == cache_key(run.config, snapshot, {"test": same})
    images.store.images[2, 0, 0, 0] = 1
    assert key != cache_key(run.config, snapshot, {"test": images})


@pytest.mark.parametrize("damage", ["half", "flipped", "empty", "nonsense", "renamed"])
def test_a_damaged_cache_is_replaced(run, passes, damage):
    expected, content = made(run), bytearray(cache(run).read_bytes())
    if damage == "half":
        content = content[: len(content) // 2]
    elif damage == "flipped":
        content[-5] ^= 16
    elif damage == "empty":
        content = b""
    elif damage == "nonsense":
        content = b"\xff" * 100
    else:
        content = content.replace(b'"test"', b'"tset"')
    cache(run).write_bytes(content)
    found = made(run)
    assert len(passes) == 4
    assert all(torch.equal(found[split], expected[split]) for split in expected)
    made(run)
    assert len(passes) == 4, "the new cache is valid"


def test_embeddings_are_used_even_if_they_cannot_be_cached(run, passes):
    (run.folder / "analysis").write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="the embeddings could not be cached"):
        assert made(run)["test"].shape == (16, run.config.model.dim)


def test_embeddings_must_be_finite(run):
    snapshot = run.snapshot()
    snapshot.network.head.bias.data[0] = torch.nan
    with pytest.raises(ValueError, match="x must be finite, got NaN or infinity in 12 of 12 rows"):
        cached_embeddings(run, snapshot, images_of(run))
    assert not cache(run).exists()
