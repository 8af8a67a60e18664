"""Read the text files in which a benchmark lists its images."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PureWindowsPath
from typing import Any, TypeAlias

from divconq.data.images.file_checks import first_three


def relative_path(path: str) -> str:
    """Return the path if it stays below the folder of the dataset on any system, else raise a ValueError.

    Links inside the folder are followed: the user made them.

    >>> relative_path("images/../../secret.jpg")
    Traceback (most recent call last):
    ValueError: a path that leads out of the folder of the dataset
    """
    parsed = PureWindowsPath(path)
    if parsed.anchor or ".." in parsed.parts:
        raise ValueError("a path that leads out of the folder of the dataset")
    return path


Column: TypeAlias = Callable[[str], int | str]  # the parser of one word
COLUMN_NAMES: Mapping[Column, str] = {int: "NUMBER", str: "TEXT", relative_path: "PATH"}


def read_list(file: Path, columns: Sequence[Column], *, skip: int = 0) -> list[tuple[Any, ...]]:
    r"""Return the space-separated values of each line, after ``skip`` header lines.

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
            wanted = " ".join(COLUMN_NAMES[column] for column in columns)
            inside = ", a path below the folder of the dataset" if relative_path in columns else ""
            raise ValueError(
                f"line {number} of {file} must be {wanted}{inside}, got {line!r}; download the file again"
            ) from error
    return rows


def read_numbered(file: Path, column: Column) -> dict[int, Any]:
    r"""Return the value of each number in a list file with lines "NUMBER VALUE".

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "classes.txt").write_text("1 ant\n2 bee\n")
    ...     read_numbered(Path(folder, "classes.txt"), str)
    {1: 'ant', 2: 'bee'}
    """
    rows = read_list(file, (int, column))
    repeated = [number for number, count in Counter(number for number, _ in rows).items() if count > 1]
    if repeated:
        raise ValueError(
            f"{file} must have one line for each number, got several for {len(repeated)} of them: "
            f"{first_three(repeated)}; download the file again"
        )
    return dict(rows)


def look_up(keys: Sequence[int], table: Mapping[int, str | int], file: Path) -> list[Any]:
    """Return the value of each key in ``table``, which was read from ``file``.

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
