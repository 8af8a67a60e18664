"""The split of a run as a record: the path, class and content of each image. Later commands see the same split.

Data changes after a training: photos are added, removed or repaired. A split that is drawn anew would then put
classes that were trained on into the test set. ``SplitRecord.select`` finds the images of the record again, and
``Changes`` says what is different.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import torch

from divconq.data.dataset import Dataset, ImageSet, ImageStore, InMemory, Subset, source_rows
from divconq.data.images.contents import box_text, image_fingerprints
from divconq.data.images.file_checks import first_three
from divconq.data.images.files import ImageFiles

Place: TypeAlias = tuple[int, int]  # the number of a set, and a row in it

FORMAT = "divconq split 1"
SPLITS = ("train", "val", "test", "gallery")
SCORED = ("test", "gallery")  # the splits that make the test
TITLES = {"train": "training", "val": "held-out", "test": "test", "gallery": "gallery"}


@dataclass(frozen=True)
class RecordedImages:
    """The images of one split: class names, and the label, path and content fingerprint of each image."""

    names: tuple[str, ...]
    labels: tuple[int, ...]
    paths: tuple[str, ...]
    fingerprints: tuple[str, ...]

    @classmethod
    def of(cls, images: ImageSet) -> "RecordedImages":
        """Return the record of an image set."""
        labels, marks = tuple(images.labels.tolist()), tuple(image_fingerprints(images))
        return cls(images.names, labels, images.paths, marks)

    @property
    def keys(self) -> list[str]:
        """Return what each image is found by: its path and its box."""
        marks = (mark.partition("[") for mark in self.fingerprints)
        return [f"{path}{bracket}{box}" for path, (_, bracket, box) in zip(self.paths, marks, strict=True)]


@dataclass(frozen=True)
class Changes:
    """How a dataset differs from a record: paths by kind and split, and paths that the record does not have."""

    missing: dict[str, list[str]] = field(default_factory=dict)
    changed: dict[str, list[str]] = field(default_factory=dict)
    relabelled: dict[str, list[str]] = field(default_factory=dict)
    added: tuple[str, ...] = ()

    def sentences(self, splits: Sequence[str]) -> list[str]:
        """Return what is different in some splits, in words.

        >>> Changes(missing={"test": ["a/1.jpg"]}).sentences(["test"])
        ['1 test image is missing (a/1.jpg)']
        """
        kinds = (
            (self.missing, "is missing", "are missing"),
            (self.changed, "has changed", "have changed"),
            (self.relabelled, "has another class", "have another class"),
        )
        return [
            f"{len(paths)} {TITLES[split]} {f'image {one}' if len(paths) == 1 else f'images {many}'} "
            f"({first_three(paths)})"
            for found, one, many in kinds
            for split in splits
            if (paths := found.get(split))
        ]


@dataclass(frozen=True)
class SplitRecord:
    """The images of a run by split: train, val (held-out classes), test and gallery.

    ``settings`` are the settings that the split was made with. ``backbone`` is a hash of the frozen backbone of a run
    that trains on stored features of these images; None for other runs.
    """

    splits: Mapping[str, RecordedImages]
    settings: Mapping[str, Any] = field(default_factory=dict)
    backbone: str | None = None

    @classmethod
    def of(
        cls, data: Dataset, validation: ImageSet | None = None, settings: Mapping[str, Any] | None = None
    ) -> "SplitRecord":
        """Return the record of a dataset and its held-out images.

        >>> from divconq.data import open_dataset
        >>> list(SplitRecord.of(open_dataset("demo")).splits)
        ['train', 'test']
        """
        sets = zip(SPLITS, (data.train, validation, data.test, data.gallery), strict=True)
        return cls(
            {split: RecordedImages.of(images) for split, images in sets if images is not None}, settings or {}
        )

    def to_json(self) -> str:
        """Return the record as one JSON object."""
        splits = {split: asdict(images) for split, images in self.splits.items()}
        content = {"format": FORMAT, "settings": dict(self.settings), "splits": splits}
        return json.dumps(content if self.backbone is None else {**content, "backbone": self.backbone}) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "SplitRecord":
        """Return the record in a JSON text. Raise ValueError if it is damaged.

        >>> SplitRecord.from_json("[]")
        Traceback (most recent call last):
        ValueError: it is not the record of a split
        """
        try:
            content = json.loads(text)
            splits = {split: _recorded_images(images) for split, images in content["splits"].items()}
            backbone = content.get("backbone")
            known = backbone is None or isinstance(backbone, str)
            if content["format"] == FORMAT and {"train", "test"} <= splits.keys() <= set(SPLITS) and known:
                return cls(splits, dict(content["settings"]), backbone)
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
            pass
        raise ValueError("it is not the record of a split")

    def trained_on(self, images: ImageSet) -> list[str]:
        """Return the paths of the images that are training images of the record, by their content."""
        trained = set(self.splits["train"].fingerprints)
        marks = image_fingerprints(images)
        return [path for path, mark in zip(images.paths, marks, strict=True) if mark in trained]

    def describes(self, data: Dataset) -> bool:
        """Return whether a dataset contains the test of the record: all of its paths, most with equal content."""
        found, changes = self.select(data, SCORED)
        changed = sum(map(len, changes.changed.values()))
        return not any(changes.missing.values()) and 2 * changed < sum(map(len, found.values()))

    def select(self, data: Dataset, splits: Sequence[str] = SPLITS) -> tuple[dict[str, ImageSet], Changes]:
        """Return the recorded images of some splits as ``data`` has them, and what is different.

        Labels, class names and the order of the images are those of the record. Missing images are left out. An
        image that has another class now keeps the class of the record.
        """
        sets = [images for images in (data.train, data.test, data.gallery) if images is not None]
        places: dict[str, list[Place]] = {}
        for number, images in enumerate(sets):
            for row, key in enumerate(_keys(images)):
                places.setdefault(key, []).append((number, row))
        known = Counter(key for images in self.splits.values() for key in images.keys)
        added = (place for key, found in places.items() for place in found[known[key] :])
        changes = Changes(added=tuple(sorted(sets[number].paths[row] for number, row in added)))
        selected = {}
        for split in (split for split in splits if split in self.splits):
            recorded = self.splits[split]
            now = [places[key].pop(0) if places.get(key) else None for key in recorded.keys]
            changes.missing[split] = [
                path for path, at in zip(recorded.paths, now, strict=True) if at is None
            ]
            if any(now):
                selected[split] = _select(sets, recorded, now)
                _compare(selected[split], sets, recorded, now, changes, split)
        return selected, changes


def _select(sets: Sequence[ImageSet], recorded: RecordedImages, now: Sequence[Place | None]) -> ImageSet:
    """Return the images at their places, with the labels of the record."""
    kept = [place for place in now if place is not None]
    labels = torch.tensor([label for label, place in zip(recorded.labels, now, strict=True) if place])
    paths = tuple(sets[number].paths[row] for number, row in kept)
    first = torch.tensor([0, *(len(images) for images in sets)]).cumsum(0)
    rows = torch.tensor(
        [int(first[number]) + row for number, row in kept]
    )  # in all sets, one after the other
    groups = [images.groups for images in sets if images.groups is not None]
    factors = set.intersection(*(set(images.factors) for images in sets))
    return ImageSet(
        _store(sets, kept),
        labels,
        recorded.names,
        paths,
        torch.cat(groups)[rows] if len(groups) == len(sets) else None,
        {name: torch.cat([images.factors[name] for images in sets])[rows] for name in sorted(factors)},
    )


def _store(sets: Sequence[ImageSet], places: Sequence[Place]) -> ImageStore:
    """Return a store of the images at some places; a subset of one store, so that its cache is found again."""
    numbers = {number for number, _ in places}
    if len(numbers) == 1:
        return Subset(sets[numbers.pop()].store, torch.tensor([row for _, row in places]))
    sources = [source_rows(images.store) for images in sets]
    found = [(sources[number][0], int(sources[number][1][row])) for number, row in places]
    stores = [(store, row) for store, row in found if isinstance(store, ImageFiles)]
    if len(stores) < len(found):
        pixels = torch.cat([store.load(torch.tensor([row])) for store, row in found])
        return InMemory(pixels, torch.stack([store.aspect[row] for store, row in found]))
    with_boxes = [store.boxes[row] for store, row in stores if store.boxes is not None]
    return ImageFiles(
        tuple(store.files[row] for store, row in stores),
        torch.stack([store.aspect[row] for store, row in stores]),
        stores[0][0].size,
        stores[0][0].workers,
        torch.stack(with_boxes) if with_boxes else None,
    )


def _compare(
    images: ImageSet,
    sets: Sequence[ImageSet],
    recorded: RecordedImages,
    now: Sequence[Place | None],
    changes: Changes,
    split: str,
) -> None:
    """Add the images with another class or another content to the changes."""
    kept = [i for i, place in enumerate(now) if place is not None]
    names = [sets[place[0]].names[int(sets[place[0]].labels[place[1]])] for place in now if place is not None]
    marks = image_fingerprints(images)
    changes.relabelled[split] = [
        recorded.paths[i]
        for i, name in zip(kept, names, strict=True)
        if name != recorded.names[recorded.labels[i]]
    ]
    changes.changed[split] = [
        recorded.paths[i] for i, mark in zip(kept, marks, strict=True) if mark != recorded.fingerprints[i]
    ]


def _keys(images: ImageSet) -> list[str]:
    """Return what each image is found by: its path and its box."""
    store, rows = source_rows(images.store)
    if not isinstance(store, ImageFiles) or store.boxes is None:
        return list(images.paths)
    boxes = store.boxes[rows].tolist()
    return [path + box_text(box) for path, box in zip(images.paths, boxes, strict=True)]


def _recorded_images(content: Mapping[str, Any]) -> RecordedImages:
    """Return the record of one split. Raise TypeError if the types are wrong."""
    texts = [content[name] for name in ("names", "paths", "fingerprints")]
    labels = content["labels"]
    if not all(isinstance(column, list) and all(type(x) is str for x in column) for column in texts):
        raise TypeError
    if not isinstance(labels, list) or not len(labels) == len(texts[1]) == len(texts[2]) > 0:
        raise TypeError
    if any(type(label) is not int or not 0 <= label < len(texts[0]) for label in labels):
        raise TypeError
    names, paths, marks = map(tuple, texts)
    return RecordedImages(names, tuple(labels), paths, marks)
