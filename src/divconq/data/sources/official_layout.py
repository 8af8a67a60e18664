"""Benchmarks in their official layout: find the files and check that all exist."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int64
from torch import Tensor

from divconq.data.dataset import Dataset, ImageSet
from divconq.data.images.file_checks import first_three, missing_files
from divconq.data.images.files import open_files


@dataclass(frozen=True)
class Count:
    """Expected numbers of classes and images of a split; None if the number of images varies."""

    classes: int
    images: int | None = None


@dataclass(frozen=True)
class Row:
    """One image of a list: its path below ``folder`` in the root, its class, and the group of its class.

    >>> Row("images", "001.Ani/1.jpg", "001.Ani").file
    'images/001.Ani/1.jpg'
    """

    folder: str
    path: str
    label: str
    group: str | None = None

    @property
    def file(self) -> str:
        """Return the path below the root."""
        return f"{self.folder}/{self.path}" if self.folder else self.path


@dataclass(frozen=True)
class Benchmark:
    """A published dataset: its official URL, the names of its folder, and its list files in each layout."""

    name: str
    title: str
    url: str
    folders: tuple[str, ...]
    layouts: tuple[tuple[str, ...], ...]

    def find(self, root: Path | None) -> tuple[Path, list[Path]]:
        """Return the folder of the dataset, which is ``root`` or in it, and its list files."""
        if root is None:
            raise ValueError(
                f"{self.name!r} is read from your disk; add --root DIR, the folder of {self.title} or the one "
                f"that contains it. Its official source is {self.url}"
            )
        folders = [root, *(root / name for name in self.folders if (root / name).is_dir())]
        found = [
            (folder, [folder / file for file in layout]) for layout in self.layouts for folder in folders
        ]
        missing = [[file for file in files if not file.is_file()] for _, files in found]
        best = min(range(len(found)), key=lambda i: len(missing[i]))
        if missing[best]:
            raise ValueError(
                f"--root must be the folder of {self.title} or the one that contains it, got {root}, where "
                f"{len(missing[best])} of {len(found[best][1])} list files are missing: "
                f"{first_three(missing[best])}; get them from {self.url}"
            )
        return found[best]

    def dataset(
        self,
        root: Path,
        splits: Mapping[str, Sequence[Row]],
        counts: Mapping[str, Count],
        *,
        size: int,
        workers: int,
    ) -> Dataset:
        """Return the dataset with the splits train and test, or train, query and gallery.

        Classes are numbered in the order of the rows; query and gallery share their numbers. Groups have the
        same numbers in all splits. Missing files raise a ValueError.
        """
        files = {split: [root / row.file for row in rows] for split, rows in splits.items()}
        self._check(root, splits, files, counts, workers)
        groups = _numbers(
            sorted({row.group for rows in splits.values() for row in rows if row.group is not None})
        )
        searched = [row.label for split, rows in splits.items() if split != "train" for row in rows]
        opened = open_files(list(files.values()), size=size, workers=workers)
        sets = {}
        for (split, rows), store in zip(splits.items(), opened, strict=True):
            labels = _numbers([row.label for row in rows] if split == "train" else searched)
            sets[split] = ImageSet(
                store,
                torch.tensor([labels[row.label] for row in rows]),
                tuple(labels),
                tuple(row.file for row in rows),
                _groups(rows, groups),
            )
        test = sets["query"] if "query" in sets else sets["test"]
        return Dataset(self.name, sets["train"], test, sets.get("gallery"))

    def _check(
        self,
        root: Path,
        splits: Mapping[str, Sequence[Row]],
        files: Mapping[str, Sequence[Path]],
        counts: Mapping[str, Count],
        workers: int,
    ) -> None:
        wrong = []
        for split, count in counts.items():
            classes, images = len({row.label for row in splits[split]}), len(splits[split])
            if classes != count.classes:
                wrong.append(f"{split} must have {count.classes:,} classes, got {classes:,}")
            if count.images is not None and images != count.images:
                wrong.append(f"{split} must have {count.images:,} images, got {images:,}")
        every = [file for part in files.values() for file in part]
        missing = missing_files(every, workers)
        if missing:
            names = [file.relative_to(root).as_posix() for file in missing]
            wrong.append(f"{len(missing):,} of {len(every):,} image files are missing: {first_three(names)}")
        if wrong:
            raise ValueError(
                f"{root} must be the complete {self.title}, but {'; '.join(wrong)}; get it again from {self.url}"
            )


def _numbers(names: Sequence[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def _groups(rows: Sequence[Row], numbers: Mapping[str, int]) -> Int64[Tensor, " n"] | None:
    if not numbers:
        return None
    return torch.tensor([numbers[row.group] for row in rows if row.group is not None])
