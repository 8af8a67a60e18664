"""By what it is known that a file is still the same, and where things that were worked out from files are kept."""

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from divconq.data.images.decoding import Box

Item = TypeVar("Item")
Result = TypeVar("Result")

TOGETHER = (
    64  # items that a thread does in a row: to hand over each by itself takes longer than to look at a file
)


def cache_folder() -> Path:
    """Where caches are: $DIVCONQ_CACHE, else divconq in $XDG_CACHE_HOME, else ~/.cache/divconq.

    >>> cache_folder().is_absolute()
    True
    """
    if chosen := os.environ.get("DIVCONQ_CACHE"):
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "divconq"


def stamp(file: Path, box: Box | None = None) -> str:
    """A hash of an image's path, size, time of change, and box if it has one.

    >>> stamp(Path("a.jpg")) == stamp(Path("b.jpg"))
    False
    """
    file = file.absolute()
    try:
        state = file.stat()
        about = [str(file), state.st_size, state.st_mtime_ns]
    except OSError:
        about = [str(file)]  # decoding it will say so
    return hashlib.sha256(repr([*about, box]).encode()).hexdigest()[:24]


def for_each(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> list[Result]:
    """What small work gives for each item, done by threads.

    >>> for_each(str, [1, 2], workers=2)
    ['1', '2']
    """
    parts = [items[first : first + TOGETHER] for first in range(0, len(items), TOGETHER)]
    with ThreadPoolExecutor(workers) as pool:
        return [
            result for done in pool.map(lambda part: [work(item) for item in part], parts) for result in done
        ]
