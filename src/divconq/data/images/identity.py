"""Tell whether two paths lead to one file, by links or by another spelling."""

import os
from collections import Counter
from collections.abc import Hashable, Sequence
from pathlib import Path

from divconq.data.images.workers import map_in_threads


def file_identities(files: Sequence[Path], workers: int) -> list[Hashable]:
    """Return a value for each path that is equal for paths of the same file, and only for them.

    >>> one, same, other = file_identities([Path("a.jpg"), Path("./a.jpg"), Path("b.jpg")], workers=1)
    >>> one == same, one == other
    (True, False)
    """
    paths = list(dict.fromkeys(files))
    states = dict(zip(paths, map_in_threads(_state, paths, workers), strict=True))
    count = Counter(states.values())
    known: dict[Path, Hashable] = {}
    for path, state in states.items():
        is_hard_link = state is not None and state[2] > 1
        # Some network file systems give two files one number, so it is not enough.
        known[path] = state if count[state] == 1 or is_hard_link else os.path.realpath(path)
    return [known[file] for file in files]


def _state(file: Path) -> tuple[int, ...] | None:
    try:
        state = file.stat()
    except OSError:
        return None
    return state.st_dev, state.st_ino, state.st_nlink, state.st_size, state.st_mtime_ns
