"""Omniglot: handwritten characters of 50 alphabets, 20 drawings of each."""

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from divconq.checks import first_line
from divconq.data.dataset import Dataset, ImageSet, InMemory
from divconq.data.images.decoding import square
from divconq.data.images.workers import map_in_threads
from divconq.data.sources.official_layout import Benchmark, Count, Row

OMNIGLOT = Benchmark(
    "omniglot",
    "Omniglot",
    "https://github.com/brendenlake/omniglot",
    folders=("omniglot", "python"),
    layouts=(),
)
SPLITS = {"train": "images_background", "test": "images_evaluation"}
COUNTS = {"train": Count(964, 19_280), "test": Count(659, 13_180)}


def read_omniglot(
    root: Path | None, *, size: int = 256, workers: int = 4, counts: Mapping[str, Count] = COUNTS
) -> Dataset:
    """Read Omniglot. The 30 alphabets of ``images_background`` are for training, the other 20 for testing.

    ``root`` holds the two unpacked archives, ``images_background/ALPHABET/characterNN/*.png``, or two files
    ``images_background.npz`` with an array ``images`` of shape (characters, drawings, height, width), where True is
    paper. Groups are alphabets, which the ``.npz`` files do not have.

    >>> read_omniglot(Path("nowhere"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: --root must be the folder of Omniglot or the one that contains it, got nowhere, ...
    """
    folder = _find(root)
    if all((folder / name).is_dir() for name in SPLITS.values()):
        rows = {split: _rows(folder / name, name) for split, name in SPLITS.items()}
        return OMNIGLOT.dataset(folder, rows, counts, size=size, workers=workers)
    sets = {
        split: _read_array(file, file.stat().st_mtime_ns, size=size, workers=workers)
        for split, file in ((split, folder / f"{name}.npz") for split, name in SPLITS.items())
    }
    for split, count in counts.items():
        if (len(sets[split].names), len(sets[split])) != (count.classes, count.images):
            raise ValueError(
                f"{folder} must be the complete Omniglot, but {split} must have {count.classes:,} characters and "
                f"{count.images:,} images, got {len(sets[split].names):,} and {len(sets[split]):,}; get it again "
                f"from {OMNIGLOT.url}"
            )
    return Dataset("omniglot", sets["train"], sets["test"])


def _find(root: Path | None) -> Path:
    """Return the folder that holds both splits, as folders or as ``.npz`` files."""
    if root is None:
        OMNIGLOT.find(root)
    assert root is not None
    for folder in (root, *(root / name for name in OMNIGLOT.folders)):
        for ending in ("", ".npz"):
            if all((folder / f"{name}{ending}").exists() for name in SPLITS.values()):
                return folder
    wanted = " and ".join(SPLITS.values())
    raise ValueError(
        f"--root must be the folder of Omniglot or the one that contains it, got {root}, which lacks the folders "
        f"{wanted}; get both archives from {OMNIGLOT.url} and unpack them"
    )


def _rows(folder: Path, name: str) -> list[Row]:
    """Return one row for each drawing in ``folder``, in the order of the paths."""
    rows = []
    for file in sorted(folder.glob("*/*/*.png")):
        alphabet, character = file.parent.parent.name, file.parent.name
        path = file.relative_to(folder).as_posix()
        rows.append(Row(name, path, f"{alphabet}/{character}", alphabet))
    return rows


@lru_cache(maxsize=2)
def _read_array(file: Path, modified: int, *, size: int, workers: int) -> ImageSet:
    """Return the drawings in a ``.npz`` file, each resized to a square. The runs of a table share them."""
    from PIL import Image

    try:
        with np.load(file) as arrays:
            drawings = arrays["images"]
        if drawings.ndim != 4 or drawings.dtype != bool or not drawings.size:
            raise ValueError(
                f"images must be of bool and have four axes, got {drawings.dtype}, {drawings.shape}"
            )
    except Exception as error:  # a damaged file can raise many kinds of errors
        raise ValueError(
            f"{file} cannot be read ({first_line(error)}); get Omniglot again from {OMNIGLOT.url}"
        ) from error
    characters, each = drawings.shape[:2]
    flat = drawings.reshape(-1, *drawings.shape[2:])

    def resized(row: int) -> torch.Tensor:
        pixels = square(Image.fromarray(flat[row].astype(np.uint8) * 255), size)
        return torch.from_numpy(pixels.copy())

    images = torch.stack(map_in_threads(resized, range(len(flat)), workers))
    aspect = torch.full((len(flat),), flat.shape[2] / flat.shape[1])
    marks = tuple(hashlib.sha256(np.packbits(drawing).tobytes()).hexdigest()[:32] for drawing in flat)
    labels = torch.arange(characters).repeat_interleave(each)
    names = tuple(f"{number:04d}" for number in range(characters))
    paths = tuple(f"{file.stem}/{names[c]}_{i:02d}" for c in range(characters) for i in range(each))
    return ImageSet(InMemory(images, aspect, marks), labels, names, paths)
