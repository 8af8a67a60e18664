"""Your own photos in folders, one folder per class."""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, TypeAlias

import numpy as np
import torch

from divconq.data.dataset import Dataset, ImageSet
from divconq.data.images.file_checks import refuse_undecodable_names
from divconq.data.images.files import open_files
from divconq.data.images.identity import file_identities
from divconq.data.images.sizes import keeps_broken_files
from divconq.data.sources.repeated import refuse_repeated

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
SPLITS = ("train", "test", "query", "gallery")

Classes: TypeAlias = Mapping[str, Sequence[Path]]


def read_folder(
    path: Path | str, *, size: int = 256, test_classes: float = 0.5, seed: int = 0, workers: int = 4
) -> Dataset:
    """Read a folder of class folders, or one with class folders in train/ and test/ or train/, query/ and gallery/.

    Without these splits, a random share ``test_classes`` of the classes, drawn with ``seed``, is the test set.
    Images may lie at any depth below their class folder. Hidden files and empty folders are ignored. Query and
    gallery share their labels.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as photos:
    ...     for name in ("ant", "bee", "cat", "dog"):
    ...         Path(photos, name).mkdir()
    ...         Image.new("RGB", (60, 40)).save(Path(photos, name, "1.jpg"))
    ...     read_folder(photos, seed=0).train.names
    ('bee', 'dog')
    """
    root = _existing(path)
    splits = {sub.name for sub in _folders(root)}.intersection(SPLITS)
    if splits in ({"train", "test"}, {"train", "query", "gallery"}):
        parts = {name: _classes(root / name) for name in SPLITS if name in splits}
    elif "train" in splits and _folders(root / "train"):
        raise ValueError(
            f"{root} must have train/ and test/, or train/, query/ and gallery/, got only "
            f"{', '.join(f'{name}/' for name in SPLITS if name in splits)}; add or remove folders"
        )
    else:
        parts = _split(root, _classes(root), test_classes, seed)
    if len(parts["train"]) < 2:
        raise ValueError(
            f"{root / 'train'} must have at least two class folders with images, got one; add more"
        )

    _check_links(root, parts, workers)
    sets = dict(zip(parts, _image_sets(root, list(parts.values()), size, workers), strict=True))
    if "query" in sets:
        sets["query"], sets["gallery"] = _share_labels(sets["query"], sets["gallery"])
    test = sets["query"] if "query" in sets else sets["test"]
    return Dataset(root.resolve().name, sets["train"], test, sets.get("gallery"))


def flat_folder(path: Path | str, *, size: int = 256, workers: int = 4) -> ImageSet:
    """Read all images below a folder. The class of an image is the class folder that it lies in, at any depth.

    The class folders are the folders in ``path`` or, if these are the splits (train, test, query, gallery), the
    folders in them. Images directly in such a parent have its name as their class.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as photos:
    ...     Image.new("RGB", (60, 40)).save(Path(photos, "1.jpg"))
    ...     flat_folder(photos).store.aspect
    tensor([1.5000])
    """
    root = _existing(path).resolve()
    parents, tops = [root], _folders(root)
    if {sub.name for sub in tops} <= set(SPLITS):
        parents += tops
    found: dict[str, list[Path]] = {}
    for parent in parents:
        for file in _images(parent, below=False):
            found.setdefault(parent.name, []).append(file)
        for sub in _folders(parent):
            if sub not in parents and (images := _images(sub)):
                found.setdefault(sub.name, []).extend(images)
    if not found:
        raise ValueError(
            f"{root} must have images in it or below, got none; they end in {', '.join(SUFFIXES)}"
        )
    return _image_sets(root, [dict(sorted(found.items()))], size, workers)[0]


def draw_test_classes(names: Sequence[str], share: float, seed: int) -> set[str]:
    """Return a random share of the classes for testing: at least two, and at least two remain for training.

    >>> sorted(draw_test_classes(["ant", "bee", "cat", "dog"], share=0.5, seed=0))
    ['ant', 'cat']
    """
    if not 0 < share < 1:
        raise ValueError(f"test_classes must be a share between 0 and 1, got {share}; use 0.5")
    count = min(max(round(share * len(names)), 2), len(names) - 2)
    return set(np.random.default_rng(seed).permutation(names).tolist()[:count])


def _existing(path: Path | str) -> Path:
    if not Path(path).is_dir():
        state = "which is a file" if Path(path).exists() else "which does not exist"
        raise ValueError(f"path must be a folder of images, got {path}, {state}; check the spelling")
    return Path(path)


def _folders(root: Path) -> list[Path]:
    try:
        return sorted(sub for sub in root.iterdir() if sub.is_dir() and not sub.name.startswith("."))
    except OSError as error:
        _refuse(error)


def _images(root: Path, *, below: bool = True) -> list[Path]:
    """Return the image files at any depth below ``root``, or directly in it, that are not hidden, sorted by path.

    Broken links, pipes and devices are included, so that they raise an error later. Links to folders are not
    followed.
    """
    found = []
    for folder, subfolders, files in os.walk(root, onerror=_refuse):
        subfolders[:] = [name for name in subfolders if below and not name.startswith(".")]
        for link in filter(Path.is_symlink, (Path(folder, name) for name in subfolders)):
            warnings.warn(f"{link} is a link to a folder, not followed", stacklevel=2)
        found += [
            Path(folder, name)
            for name in files
            if Path(name).suffix.lower() in SUFFIXES and not name.startswith(".")
        ]
    refuse_undecodable_names(found)
    return sorted(found, key=Path.as_posix)


def _refuse(error: OSError) -> NoReturn:
    """Raise a ValueError for a folder that cannot be listed."""
    raise ValueError(
        f"{error.filename} cannot be read ({error.strerror}); change its permissions or remove it"
    ) from error


def _classes(root: Path) -> Classes:
    """Return the images of each class folder that has images."""
    classes = {sub.name: images for sub in _folders(root) if (images := _images(sub))}
    if not classes:
        loose = len(_images(root))
        got = f"{loose} images directly in it" if loose else f"no image (they end in {', '.join(SUFFIXES)})"
        raise ValueError(
            f"{root} must have one folder per class with its images, got {got}; "
            "put each image into the folder of its class"
        )
    return classes


def _split(root: Path, classes: Classes, test_classes: float, seed: int) -> dict[str, Classes]:
    if len(classes) < 4:
        raise ValueError(
            f"{root} must have at least four class folders with images, two to train on and two to test, "
            f"got {len(classes)}; add classes, or make train/ and test/ yourself"
        )
    tested = draw_test_classes(list(classes), test_classes, seed)
    return {
        "train": {name: images for name, images in classes.items() if name not in tested},
        "test": {name: images for name, images in classes.items() if name in tested},
    }


def _check_links(root: Path, parts: Mapping[str, Classes], workers: int) -> None:
    """Raise a ValueError if links give one file two labels, or put it into train and into another split."""
    if keeps_broken_files():
        return
    images = [
        (file, label, split == "train")
        for split, classes in parts.items()
        for label, found in classes.items()
        for file in found
    ]
    files, labels, train = zip(*images, strict=True)
    refuse_repeated(
        root,
        file_identities(files, workers),
        labels,
        train,
        name=lambda i, j: " = ".join(files[k].relative_to(root).as_posix() for k in (i, j)),
        remedy="these are links to one file, so remove one of them",
    )


def _image_sets(root: Path, parts: Sequence[Classes], size: int, workers: int) -> list[ImageSet]:
    files = [[file for images in classes.values() for file in images] for classes in parts]
    return [
        ImageSet(
            store,
            torch.arange(len(classes)).repeat_interleave(torch.tensor([len(c) for c in classes.values()])),
            tuple(classes),
            tuple(file.relative_to(root).as_posix() for file in store.files),
        )
        for classes, store in zip(parts, open_files(files, size=size, workers=workers), strict=True)
    ]


def _share_labels(*sets: ImageSet) -> list[ImageSet]:
    """Give all sets the same class names, and labels that fit them."""
    names = tuple(sorted({name for images in sets for name in images.names}))
    number = {name: i for i, name in enumerate(names)}
    return [
        replace(
            images, labels=torch.tensor([number[name] for name in images.names])[images.labels], names=names
        )
        for images in sets
    ]
