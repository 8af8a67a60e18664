"""Checks of many image files at once; an error names the first three files."""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm

from divconq.data.images.decoding import prepare_pillow
from divconq.data.images.workers import map_in_threads, parallel_map

Result = TypeVar("Result")

SMALLEST_SIDE = 8  # pixels; decoding to the smallest square is fastest


def map_files(
    work: Callable[[Path], Result], files: Sequence[Path], workers: int, title: str
) -> list[Result]:
    """Return ``work(file)`` for each file, and show a progress bar with this title.

    >>> map_files(lambda file: file.suffix, [Path("1.jpg"), Path("2.png")], 2, "reading")
    ['.jpg', '.png']
    """
    prepare_pillow()
    return list(
        tqdm(
            parallel_map(work, files, workers),
            desc=title,
            total=len(files),
            unit=" files",
            file=sys.stderr,
            dynamic_ncols=True,
            disable=None,
        )
    )


def refuse_unreadable(files: Sequence[Path], reasons: Sequence[str | None], *, add: str = "") -> None:
    """Raise a ValueError if any reason is not None; ``add`` is appended to the message.

    >>> refuse_unreadable([Path("1.jpg"), Path("2.jpg")], [None, "truncated"])
    Traceback (most recent call last):
    ValueError: every image must be readable, got 1 of 2 that are not: 2.jpg (truncated); remove them or save ...
    """
    broken = [f"{file} ({reason})" for file, reason in zip(files, reasons, strict=True) if reason is not None]
    if broken:
        raise ValueError(
            f"every image must be readable, got {len(broken)} of {len(files)} that are not: "
            f"{first_three(broken)}; remove them or save them again as JPEG or PNG{add}"
        )


def refuse_undecodable_names(paths: Iterable[Path]) -> None:
    r"""Raise a ValueError if a path is not UTF-8: it could not be written to logs, tables and reports.

    >>> refuse_undecodable_names([Path("caf\udce9.jpg")])
    Traceback (most recent call last):
    ValueError: the names of files and folders must be UTF-8, got 1 that is not: caf\xe9.jpg; rename it
    """
    bad = [path for path in map(str, paths) if not _is_utf8(path)]
    if bad:
        shown = [os.fsencode(path).decode("utf-8", "backslashreplace") for path in bad]
        got = "1 that is not" if len(bad) == 1 else f"{len(bad):,} that are not"
        raise ValueError(
            f"the names of files and folders must be UTF-8, got {got}: {first_three(shown)}; "
            f"rename {'it' if len(bad) == 1 else 'them'}"
        )


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def missing_files(files: Sequence[Path], workers: int) -> list[Path]:
    """Return the files that do not exist.

    >>> missing_files([Path("nowhere.jpg")], workers=1)[0].name
    'nowhere.jpg'
    """
    exists = map_in_threads(Path.is_file, files, workers)
    return [file for file, found in zip(files, exists, strict=True) if not found]


def first_three(names: Sequence[object]) -> str:
    """Return the first three names as text, and the number of further names.

    >>> first_three("abcde")
    'a, b, c and 2 more'
    """
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(str(name) for name in names[:3]) + more
