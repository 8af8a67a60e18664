"""Your own photos, listed in a CSV or Parquet file with one row per image."""

import math
from collections.abc import Hashable, Mapping, Sequence
from os.path import normpath, pardir, sep
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from divconq.data.dataset import Dataset, ImageSet
from divconq.data.images.file_checks import first_three, missing_files, refuse_undecodable_names
from divconq.data.images.files import open_files
from divconq.data.images.identity import file_identities
from divconq.data.sources.folder import SPLITS, draw_test_classes
from divconq.data.sources.repeated import refuse_repeated
from divconq.data.sources.table_files import BOX, Table, read_columns


def read_table(
    path: Path, *, size: int = 256, workers: int = 4, test_classes: float = 0.5, seed: int = 0
) -> Dataset:
    """Read the images of a table with the columns ``path`` and ``label``.

    A path is absolute, or relative to the folder of the table and below it. The column ``split`` holds train and
    test, or train, query and gallery. Without it, a random share ``test_classes`` of the classes, drawn with
    ``seed``, is the test set. ``x1,y1,x2,y2`` crop the upright image. ``camera`` becomes a factor. Other columns
    are ignored. Query and gallery share their labels.

    >>> read_table(Path("nowhere.csv"))
    Traceback (most recent call last):
    ValueError: the file nowhere.csv does not exist; check the spelling
    """
    table = read_columns(path)
    _check_paths(path, table["path"])
    files = [path.parent / name for name in table["path"]]
    refuse_undecodable_names(files)
    missing = missing_files(files, workers)
    if missing:
        raise ValueError(
            f"every path of {path} must be an image file, got {len(missing)} of {len(files)} that are not: "
            f"{first_three(missing)}; paths are relative to the folder of the table"
        )
    splits = _splits(path, table, test_classes, seed)
    boxes = _boxes(path, table) if "x1" in table else None
    _check_repeated(path, table, file_identities(files, workers), boxes, splits)
    opened = open_files(
        [[files[i] for i in rows] for rows in splits.values()],
        size=size,
        workers=workers,
        boxes=None if boxes is None else [boxes[rows] for rows in splits.values()],
        rows=list(splits.values()),
    )
    names = {split: _names(table["label"], rows) for split, rows in splits.items()}
    if "query" in splits:
        names["query"] = names["gallery"] = _names(table["label"], splits["query"] + splits["gallery"])
    cameras = {name: i for i, name in enumerate(sorted(set(table.get("camera", ()))))}
    sets = {}
    for (split, rows), store in zip(splits.items(), opened, strict=True):
        number = {name: i for i, name in enumerate(names[split])}
        sets[split] = ImageSet(
            store,
            torch.tensor([number[table["label"][i]] for i in rows]),
            names[split],
            tuple(table["path"][i] for i in rows),
            factors={"camera": torch.tensor([cameras[table["camera"][i]] for i in rows])} if cameras else {},
        )
    test = sets["query"] if "query" in sets else sets["test"]
    return Dataset(path.stem, sets["train"], test, sets.get("gallery"))


def _check_paths(path: Path, names: Sequence[str]) -> None:
    """Raise a ValueError if a relative path leaves the folder of the table."""
    leaving = [
        f"{name} in row {row}"
        for row, name in enumerate(names, 1)
        if normpath(name.replace("\\", "/")).split(sep)[0] == pardir
    ]
    if leaving:
        raise ValueError(
            f"every path of {path} must stay below its folder, got {len(leaving)} that leave it: "
            f"{first_three(leaving)}; move the table above its images, or write absolute paths"
        )


def _splits(path: Path, table: Table, test_classes: float, seed: int) -> dict[str, list[int]]:
    """Return the rows of each split."""
    if "split" not in table:
        names = _names(table["label"], range(len(table["label"])))
        if len(names) < 4:
            raise ValueError(
                f"{path} must have at least four classes, two to train on and two to test, got {len(names)}; "
                "add classes, or a column split with train and test"
            )
        tested = draw_test_classes(names, test_classes, seed)
        split_of = ["test" if label in tested else "train" for label in table["label"]]
    else:
        split_of = list(table["split"])
        _check_splits(path, split_of)
    splits = {name: [i for i, split in enumerate(split_of) if split == name] for name in SPLITS}
    if len({table["label"][i] for i in splits["train"]}) < 2:
        raise ValueError(f"{path} must have at least two classes to train on, got one; add more")
    return {name: rows for name, rows in splits.items() if rows}


def _check_splits(path: Path, split_of: Sequence[str]) -> None:
    unknown = [f"{split!r} in row {row}" for row, split in enumerate(split_of, 1) if split not in SPLITS]
    if unknown:
        raise ValueError(
            f"the column split of {path} must say train, test, query or gallery, got {first_three(unknown)}; "
            "rename or remove these rows"
        )
    if set(split_of) not in ({"train", "test"}, {"train", "query", "gallery"}):
        got = ", ".join(name for name in SPLITS if name in split_of)
        raise ValueError(
            f"the column split of {path} must have train and test, or train, query and gallery, got only {got}; "
            "add or rename rows"
        )


def _boxes(path: Path, table: Table) -> Float[Tensor, "n 4"]:
    rows = list(zip(*(table[name] for name in BOX), strict=True))
    wrong = [
        f"{value!r} in row {i}" for i, row in enumerate(rows, 1) for value in row if not _is_finite(value)
    ]
    if wrong:
        raise ValueError(
            f"x1, y1, x2 and y2 of {path} must be finite numbers, got {first_three(wrong)}; correct them"
        )
    return torch.tensor([[float(value) for value in row] for row in rows])


def _is_finite(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _check_repeated(
    path: Path,
    table: Table,
    images: Sequence[Hashable],
    boxes: Float[Tensor, "n 4"] | None,
    splits: Mapping[str, Sequence[int]],
) -> None:
    """Raise a ValueError if an image, or a box of it, has two labels or is in train and in another split."""
    train = set(splits["train"])

    def name(i: int, j: int) -> str:
        paths = dict.fromkeys((table["path"][i], table["path"][j]))
        return f"{' = '.join(paths)} in rows {i + 1} and {j + 1}"

    refuse_repeated(
        path,
        images if boxes is None else [*zip(images, map(tuple, boxes.tolist()), strict=True)],
        table["label"],
        [row in train for row in range(len(images))],
        name=name,
        remedy="correct the labels or remove rows",
    )


def _names(labels: Sequence[str], rows: Sequence[int]) -> tuple[str, ...]:
    return tuple(sorted({labels[i] for i in rows}))
