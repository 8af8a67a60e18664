"""Omniglot in its official layout, and as two arrays."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from divconq.data import open_dataset
from divconq.data.sources.official_layout import Count
from divconq.data.sources.omniglot import read_omniglot

COUNTS = {"train": Count(3, 6), "test": Count(2, 4)}
REAL = Path(__file__).parents[4] / "shared" / "data" / "omniglot"


def drawings(characters, seed):
    return np.random.default_rng(seed).random((characters, 2, 21, 21)) < 0.7


def make_folders(root):
    places = {
        "images_background": ["Greek/character01", "Greek/character02", "Armenian/character01"],
        "images_evaluation": ["Tengwar/character01", "Tengwar/character02"],
    }
    for seed, (split, characters) in enumerate(places.items()):
        for character, images in zip(characters, drawings(len(characters), seed), strict=True):
            folder = root / split / character
            folder.mkdir(parents=True)
            for number, image in enumerate(images, 1):
                Image.fromarray(image).save(folder / f"0001_{number:02d}.png")
    return root


def make_arrays(root):
    root.mkdir(exist_ok=True)
    for seed, (split, characters) in enumerate((("background", 3), ("evaluation", 2))):
        np.savez_compressed(root / f"images_{split}.npz", images=drawings(characters, seed))
    return root


def test_folders(tmp_path):
    data = read_omniglot(make_folders(tmp_path), size=8, counts=COUNTS)
    assert data.train.names == ("Armenian/character01", "Greek/character01", "Greek/character02")
    assert data.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert data.train.groups.tolist() == [0, 0, 1, 1, 1, 1], "alphabets"
    assert data.test.names == ("Tengwar/character01", "Tengwar/character02")
    assert data.test.groups.tolist() == [2, 2, 2, 2]
    assert data.train.paths[0] == "images_background/Armenian/character01/0001_01.png"


def test_arrays_hold_the_same_images_as_folders(tmp_path):
    folders = read_omniglot(make_folders(tmp_path / "folders"), size=8, counts=COUNTS)
    arrays = read_omniglot(make_arrays(tmp_path / "arrays"), size=8, counts=COUNTS)
    assert arrays.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert arrays.test.labels.tolist() == [0, 0, 1, 1]
    order = torch.tensor([2, 3, 4, 5, 0, 1])  # of the folders, whose alphabets are sorted
    everything = torch.arange(6)
    assert torch.equal(arrays.train.store.load(everything), folders.train.store.load(order))
    assert torch.equal(arrays.train.store.aspect, folders.train.store.aspect)
    assert arrays.train.groups is None


def test_root_may_be_the_parent_folder(tmp_path):
    make_arrays(tmp_path / "omniglot")
    assert len(read_omniglot(tmp_path, size=8, counts=COUNTS).train) == 6


@pytest.mark.parametrize("make", [make_folders, make_arrays])
def test_an_incomplete_copy_is_refused(tmp_path, make):
    make(tmp_path)
    with pytest.raises(ValueError, match=r"train must have 964 \w+.*got 3.*get it again from https://"):
        open_dataset("omniglot", root=tmp_path, size=8)


def test_one_split_is_not_enough(tmp_path):
    make_arrays(tmp_path)
    (tmp_path / "images_evaluation.npz").unlink()
    with pytest.raises(
        ValueError, match=r"lacks the folders images_background and images_evaluation; get both"
    ):
        read_omniglot(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no archive", "pickle"),
        ({"drawings": np.zeros((3, 2, 4, 4), bool)}, "images"),
        ({"images": np.zeros((3, 2, 4, 4))}, "must be of bool"),
        ({"images": np.zeros((3, 16), bool)}, "four axes"),
    ],
)
def test_damaged_arrays(tmp_path, content, message):
    make_arrays(tmp_path)
    file = tmp_path / "images_background.npz"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        np.savez(file, **content)
    with pytest.raises(
        ValueError, match=rf"images_background.npz cannot be read .*{message}.*get Omniglot again"
    ):
        read_omniglot(tmp_path, counts=COUNTS)


@pytest.mark.skipif(not REAL.is_dir(), reason="the real Omniglot is not here")
def test_the_real_omniglot():
    data = open_dataset("omniglot", root=REAL, size=16)
    assert (len(data.train), len(data.train.names)) == (19_280, 964)
    assert (len(data.test), len(data.test.names)) == (13_180, 659)
