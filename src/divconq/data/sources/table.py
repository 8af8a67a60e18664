"""Your own photos, listed in a table: a CSV or Parquet file with a row for each image."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from os.path import normpath, pardir, sep
from pathlib import Path
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from divconq.data.dataset import Dataset, ImageSet
from divconq.data.images.files import absent, first_three, open_files
from divconq.data.sources.folder import draw_test_classes

BOX = ("x1", "y1", "x2", "y2")
COLUMNS = ("path", "label", "split", "camera", *BOX)
SPLITS = ("train", "test", "query", "gallery")

Table: TypeAlias = Mapping[str, Sequence[str]]


def read_table(
    path: Path, *, size: int = 256, workers: int = 4, test_classes: float = 0.5, seed: int = 0
) -> Dataset:
    """Read the images that a table lists as ``path,label``, relative to its folder and below it, or absolute.

    A column ``split`` says train or test, or train, query or gallery; without it the share ``test_classes`` of
    the classes is kept for testing, drawn by ``seed``. ``x1,y1,x2,y2`` crop the upright image, ``camera`` goes
    to the factors; other columns are passed over. Query and gallery have one numbering of classes.

    >>> read_table(Path("nowhere.csv"))
    Traceback (most recent call last):
    ValueError: there is no file nowhere.csv; check the spelling
    """
    table = _checked(path, _read(path))
    _check_paths(path, table["path"])
    files = [path.parent / name for name in table["path"]]
    gone = absent(files, workers)
    if gone:
        raise ValueError(
            f"every path of {path} must be an image file, got {len(gone)} of {len(files)} that are not there: "
            f"{first_three(gone)}; paths are relative to the folder of the table"
        )
    parts = _parts(path, table, test_classes, seed)
    boxes = _boxes(path, table) if "x1" in table else None
    _check_repeated(path, table, files, boxes, parts)
    opened = open_files(
        [[files[i] for i in rows] for rows in parts.values()],
        size=size,
        workers=workers,
        boxes=None if boxes is None else [boxes[rows] for rows in parts.values()],
    )
    names = {split: _names(table["label"], rows) for split, rows in parts.items()}
    if "query" in parts:
        names["query"] = names["gallery"] = _names(table["label"], parts["query"] + parts["gallery"])
    cameras = {name: i for i, name in enumerate(sorted(set(table.get("camera", ()))))}
    sets = {}
    for (split, rows), pixels in zip(parts.items(), opened, strict=True):
        number = {name: i for i, name in enumerate(names[split])}
        sets[split] = ImageSet(
            pixels,
            torch.tensor([number[table["label"][i]] for i in rows]),
            names[split],
            tuple(table["path"][i] for i in rows),
            factors={"camera": torch.tensor([cameras[table["camera"][i]] for i in rows])} if cameras else {},
        )
    test = sets["query"] if "query" in sets else sets["test"]
    return Dataset(path.stem, sets["train"], test, sets.get("gallery"))


def _read(path: Path) -> dict[str, list[str]]:
    """The known columns of the table as text; what is missing is empty."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}; check the spelling")
    return _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)


def _read_csv(path: Path) -> dict[str, list[str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = _numbered(path, file)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be a CSV file in UTF-8, got {error}; save it again") from error
    heading = [name.strip() for name in lines[0][1]] if lines else []
    _check_heading(path, heading)
    for number, line in lines[1:]:
        if len(line) != len(heading):
            raise ValueError(
                f"line {number} of {path} must have {len(heading)} values, like the first line, got {len(line)}; "
                "put values with commas in quotes"
            )
    columns = zip(*(line for _, line in lines[1:]), strict=True) if len(lines) > 1 else ([] for _ in heading)
    return {name: [value.strip() for value in column] for name, column in zip(heading, columns, strict=True)}


def _numbered(path: Path, file: Iterable[str]) -> list[tuple[int, list[str]]]:
    """The rows that are not blank, with the number of the line on which each starts."""
    reader = csv.reader(file, strict=True)
    rows, start = [], 1
    try:
        for row in reader:
            if row:
                rows.append((start, row))
            start = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"line {start} of {path} must have values with commas between them, got {error}; "
            "close every quote, and write a quote in quotes twice"
        ) from error
    return rows


def _read_parquet(path: Path) -> dict[str, list[str]]:
    try:
        from pyarrow import parquet  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise ValueError(
            f"{path} needs the package pyarrow; pip install pyarrow, or save it as CSV"
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            names = [name for name in file.schema_arrow.names if name in COLUMNS]
            columns = file.read(columns=names).to_pydict()
    except Exception as error:  # a damaged file raises errors of many kinds
        raise ValueError(f"{path} must be a Parquet file, got {error}; save it again") from error
    _check_heading(path, names)
    return {
        name: ["" if value is None else str(value).strip() for value in column]
        for name, column in columns.items()
    }


def _check_heading(path: Path, heading: Sequence[str]) -> None:
    twice = [name for name in COLUMNS if heading.count(name) > 1]
    if twice:
        raise ValueError(
            f"every column of {path} must have a name of its own, got {', '.join(twice)} more than once; "
            "rename or remove the others"
        )


def _checked(path: Path, table: dict[str, list[str]]) -> Table:
    """The known columns of the table, if what there must be is there."""
    needed = ("path", "label", *(BOX if set(BOX) & set(table) else ()))
    missing = [name for name in needed if name not in table]
    if missing:
        raise ValueError(
            f"{path} must have the columns {', '.join(needed)}, got {', '.join(table) or 'none'}; "
            f"add {', '.join(missing)}"
        )
    if not table["path"]:
        raise ValueError(f"{path} must have a row for each image, got none; add rows below the column names")
    known = {name: column for name, column in table.items() if name in COLUMNS}
    for name, column in known.items():
        empty = [row for row, value in enumerate(column, 1) if not value]
        if empty:
            raise ValueError(
                f"every row of {path} must have a {name}, got {len(empty)} without: row {first_three(empty)}; "
                "fill them in or remove the rows"
            )
    return known


def _check_paths(path: Path, names: Sequence[str]) -> None:
    """Refuse relative paths that leave the folder of the table; absolute ones say openly where they lead."""
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


def _parts(path: Path, table: Table, test_classes: float, seed: int) -> dict[str, list[int]]:
    """The rows of each split."""
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
    parts = {name: [i for i, mine in enumerate(split_of) if mine == name] for name in SPLITS}
    if len({table["label"][i] for i in parts["train"]}) < 2:
        raise ValueError(f"{path} must have at least two classes to train on, got one; add more")
    return {name: rows for name, rows in parts.items() if rows}


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
        f"{value!r} in row {i}" for i, row in enumerate(rows, 1) for value in row if not _is_number(value)
    ]
    if wrong:
        raise ValueError(
            f"x1, y1, x2 and y2 of {path} must be numbers, got {first_three(wrong)}; correct them"
        )
    return torch.tensor([[float(value) for value in row] for row in rows])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_repeated(
    path: Path,
    table: Table,
    files: Sequence[Path],
    boxes: Float[Tensor, "n 4"] | None,
    parts: Mapping[str, Sequence[int]],
) -> None:
    """Refuse an image, or a box of it, that has two labels, or that is to be trained on and to be found."""
    trained = set(parts["train"])
    seen = [()] * len(files) if boxes is None else [tuple(box) for box in boxes.tolist()]
    first: dict[tuple[Path, tuple[float, ...]], int] = {}
    mixed, leaked = [], []
    for row, image in enumerate(zip(files, seen, strict=True)):
        other = first.setdefault(image, row)
        named = f"{table['path'][row]} in rows {other + 1} and {row + 1}"
        if table["label"][row] != table["label"][other]:
            mixed.append(f"{named} ({table['label'][other]}, {table['label'][row]})")
        elif (row in trained) != (other in trained):
            leaked.append(named)
    if mixed:
        raise ValueError(
            f"every image of {path} must have one label, got {len(mixed)} with another: {first_three(mixed)}; "
            "correct the labels or remove rows"
        )
    if leaked:
        raise ValueError(
            f"no image of {path} may be in train and in another split, got {len(leaked)} that are: "
            f"{first_three(leaked)}; the scores would be too good, so remove it from one"
        )


def _names(labels: Sequence[str], rows: Sequence[int]) -> tuple[str, ...]:
    return tuple(sorted({labels[i] for i in rows}))
