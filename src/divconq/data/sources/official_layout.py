"""Benchmarks as their authors publish them: where their files are, and whether all of them are there."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any, TypeAlias

import torch
from jaxtyping import Int64
from torch import Tensor

from divconq.data.dataset import Dataset, ImageSet
from divconq.data.images.files import absent, first_three, open_files


@dataclass(frozen=True)
class Count:
    """How many classes and images a split must have; images may differ where they are None."""

    classes: int
    images: int | None = None


@dataclass(frozen=True)
class Row:
    """One image of a list: the path it gives, below a ``folder`` of the root, its class, and its class's group.

    >>> Row("images", "001.Ani/1.jpg", "001.Ani").file
    'images/001.Ani/1.jpg'
    """

    folder: str
    path: str
    label: str
    group: str | None = None

    @property
    def file(self) -> str:
        """The path below the root."""
        return f"{self.folder}/{self.path}" if self.folder else self.path


@dataclass(frozen=True)
class Benchmark:
    """A published dataset: its official place, what its folder is called, and its list files in each layout."""

    name: str
    title: str
    url: str
    folders: tuple[str, ...]
    layouts: tuple[tuple[str, ...], ...]

    def find(self, root: Path | None) -> tuple[Path, list[Path]]:
        """The folder of the dataset, which is ``root`` or in it, and its list files."""
        if root is None:
            raise ValueError(
                f"{self.name!r} is read from your disk; add --root DIR, the folder of {self.title} or the one "
                f"that holds it. The official place to get it is {self.url}"
            )
        folders = [root, *(root / name for name in self.folders if (root / name).is_dir())]
        found = [
            (folder, [folder / file for file in layout]) for layout in self.layouts for folder in folders
        ]
        missing = [[file for file in files if not file.is_file()] for _, files in found]
        best = min(range(len(found)), key=lambda i: len(missing[i]))
        if missing[best]:
            raise ValueError(
                f"--root must be the folder of {self.title} or the one that holds it, got {root}, where "
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
        """The splits train and test, or train, query and gallery, if they are complete.

        Classes are numbered as they come, those of query and gallery alike; groups alike in all splits.
        """
        files = {split: [root / row.file for row in rows] for split, rows in splits.items()}
        self._check(root, splits, files, counts, workers)
        groups = _numbers(
            sorted({row.group for rows in splits.values() for row in rows if row.group is not None})
        )
        searched = [row.label for split, rows in splits.items() if split != "train" for row in rows]
        opened = open_files(list(files.values()), size=size, workers=workers)
        sets = {}
        for (split, rows), pixels in zip(splits.items(), opened, strict=True):
            labels = _numbers([row.label for row in rows] if split == "train" else searched)
            sets[split] = ImageSet(
                pixels,
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
        gone = absent(every, workers)
        if gone:
            names = [file.relative_to(root).as_posix() for file in gone]
            wrong.append(f"{len(gone):,} of {len(every):,} image files are missing: {first_three(names)}")
        if wrong:
            raise ValueError(
                f"{root} must be the whole {self.title}, but {'; '.join(wrong)}; get it again from {self.url}"
            )


def below(path: str) -> str:
    """A path of a list, which must stay below the folder of the dataset, on any system.

    Links in that folder may lead anywhere: who made them meant it.

    >>> below("images/../../secret.jpg")
    Traceback (most recent call last):
    ValueError: a path that leads out of the folder of the dataset
    """
    parsed = PureWindowsPath(path)
    if parsed.anchor or ".." in parsed.parts:
        raise ValueError("a path that leads out of the folder of the dataset")
    return path


Column: TypeAlias = Callable[[str], int | str]  # what a word of a list file is read as
WANTED: Mapping[Column, str] = {int: "NUMBER", str: "TEXT", below: "PATH"}


def read_list(file: Path, columns: Sequence[Column], *, skip: int = 0) -> list[tuple[Any, ...]]:
    r"""The lines of a list file as values parted by blanks, after ``skip`` lines of heading.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "images.txt").write_text("id path\n1 a.jpg\n2 b.jpg\n")
    ...     read_list(Path(folder, "images.txt"), (int, str), skip=1)
    [(1, 'a.jpg'), (2, 'b.jpg')]
    """
    rows = []
    lines = file.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    for number, line in enumerate(lines[skip:], skip + 1):
        values = line.split()
        if not values:
            continue
        try:
            rows.append(tuple(column(value) for column, value in zip(columns, values, strict=True)))
        except ValueError as error:
            wanted = " ".join(WANTED[column] for column in columns)
            inside = ", a path below the folder of the dataset" if below in columns else ""
            raise ValueError(
                f"line {number} of {file} must be {wanted}{inside}, got {line!r}; download the file again"
            ) from error
    return rows


def read_numbered(file: Path, column: Column) -> dict[int, Any]:
    r"""What a list file says of each number; a number may be there once.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "classes.txt").write_text("1 ant\n2 bee\n")
    ...     read_numbered(Path(folder, "classes.txt"), str)
    {1: 'ant', 2: 'bee'}
    """
    rows = read_list(file, (int, column))
    twice = [number for number, count in Counter(number for number, _ in rows).items() if count > 1]
    if twice:
        raise ValueError(
            f"{file} must have one line for each number, got several for {len(twice)} of them: "
            f"{first_three(twice)}; download the file again"
        )
    return dict(rows)


def look_up(keys: Sequence[int], table: Mapping[int, str | int], file: Path) -> list[Any]:
    """What ``table``, which was read from ``file``, says of each key.

    >>> look_up([2, 1], {1: "ant", 2: "bee"}, Path("classes.txt"))
    ['bee', 'ant']
    """
    unknown = sorted({key for key in keys if key not in table})
    if unknown:
        raise ValueError(
            f"{file} must have a line for every number in use, got none for {len(unknown)} of them: "
            f"{first_three(unknown)}; download the file again"
        )
    return [table[key] for key in keys]


def _numbers(names: Sequence[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def _groups(rows: Sequence[Row], numbers: Mapping[str, int]) -> Int64[Tensor, " n"] | None:
    if not numbers:
        return None
    return torch.tensor([numbers[row.group] for row in rows if row.group is not None])
