"""File fingerprints (path, size, modification time) and the cache directory."""

import hashlib
import os
from pathlib import Path

from divconq.data.images.decoding import Box

REMEDY = "set DIVCONQ_CACHE to a folder with room, or add --no-cache to decode images on every load"


def cache_folder() -> Path:
    """Return the cache directory: $DIVCONQ_CACHE, else $XDG_CACHE_HOME/divconq, else ~/.cache/divconq.

    >>> cache_folder().is_absolute()
    True
    """
    try:
        if folder := os.environ.get("DIVCONQ_CACHE"):
            return Path(folder).expanduser().absolute()
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "divconq"
    except RuntimeError as error:  # for example a container without HOME, whose user has no name
        raise ValueError(
            f"the cache has no folder, because the home directory is unknown; {REMEDY}"
        ) from error


def fingerprint(file: Path, box: Box | None = None) -> str:
    """Return a hash of the path, size and modification time of an image file, and of the box to crop.

    >>> fingerprint(Path("a.jpg")) == fingerprint(Path("b.jpg"))
    False
    """
    file = file.absolute()
    try:
        state = file.stat()
        about = [str(file), state.st_size, state.st_mtime_ns]
    except OSError:
        about = [str(file)]  # decoding the file will report the error
    return hashlib.sha256(repr([*about, box]).encode()).hexdigest()[:24]
