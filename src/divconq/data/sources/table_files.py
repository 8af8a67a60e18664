"""Read the columns of a CSV or Parquet file as text."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TypeAlias

from divconq.checks import first_line
from divconq.data.images.file_checks import first_three

BOX = ("x1", "y1", "x2", "y2")
COLUMNS = ("path", "label", "split", "camera", *BOX)
ALLOWED = (str, int, float, Decimal, type(None))  # values of a Parquet column; bool is an int

Table: TypeAlias = Mapping[str, Sequence[str]]


def read_columns(path: Path) -> Table:
    """Return the values of each known column as text. Raise ValueError if a value is missing.

    >>> read_columns(Path("nowhere.csv"))
    Traceback (most recent call last):
    ValueError: the file nowhere.csv does not exist; check the spelling
    """
    if not path.is_file():
        raise ValueError(f"the file {path} does not exist; check the spelling")
    return _checked(path, _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path))


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
    """Return the rows that are not blank, each with the number of its first line."""
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
            table = file.read(columns=names)
            columns = table.to_pydict()
    except Exception as error:  # a damaged file raises many kinds of errors
        raise ValueError(f"{path} must be a Parquet file, got {first_line(error)}; save it again") from error
    _check_heading(path, names)
    for name, column in columns.items():
        wrong = [(row, value) for row, value in enumerate(column, 1) if not isinstance(value, ALLOWED)]
        if wrong:
            row, value = wrong[0]
            raise ValueError(
                f"the column {name} of {path} must have text or numbers, got {value!r} in row {row} "
                f"({table.schema.field(name).type}); save it as text"
            )
    return {name: _texts(path, name, column) for name, column in columns.items()}


def _texts(path: Path, name: str, column: Sequence[object]) -> list[str]:
    """Return the values of a Parquet column as a CSV file has them; missing ones become empty."""
    texts = []
    for row, value in enumerate(column, 1):
        if isinstance(value, (float, Decimal)) and name not in BOX and value == value:
            if value % 1:
                raise ValueError(
                    f"the column {name} of {path} must have text or whole numbers, got {value} in row {row}; "
                    "save it as text"
                )
            value = int(value)  # numbers become floats in a column with missing values
        texts.append("" if value is None or value != value else str(value).strip())
    return texts


def _check_heading(path: Path, heading: Sequence[str]) -> None:
    repeated = [name for name in COLUMNS if heading.count(name) > 1]
    if repeated:
        raise ValueError(
            f"every column of {path} must have its own name, got {', '.join(repeated)} more than once; "
            "rename or remove the others"
        )


def _checked(path: Path, table: dict[str, list[str]]) -> Table:
    """Return the known columns, after checking that none is missing or has empty values."""
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
