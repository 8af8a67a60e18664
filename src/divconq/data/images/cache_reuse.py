"""Reuse images from another cache in the same folder.

A cache is for one list of files. If a photo is added, repaired or removed, or if classes are split in another
way, a new cache is built: only new images are decoded, the others are copied.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from divconq.data.images.cache_files import CacheFiles, try_lock

FORMAT = 4  # increase this number when decoding gives other pixels
JPEG_FORMAT = 3  # caches from this format on have the same pixels of JPEGs


def find_cached(
    files: CacheFiles, sources: Mapping[str, Path]
) -> dict[str, UInt8[np.ndarray, "size size 3"]]:
    """Return the images of other caches, complete or not, that have these fingerprints; keys are fingerprints.

    ``sources`` holds the image file of each fingerprint. Of older caches, only JPEGs are used.
    """
    found: dict[str, UInt8[np.ndarray, "size size 3"]] = {}
    for other, theirs, number in _other_caches(files):
        if number < JPEG_FORMAT:
            continue
        complete = other.is_complete(len(theirs))
        done = np.ones(len(theirs), dtype=bool) if complete else other.progress(len(theirs))
        rows = [
            row
            for row in np.flatnonzero(done).tolist()
            if theirs[row] in sources and (number == FORMAT or _is_jpeg(sources[theirs[row]]))
        ]
        with suppress(FileNotFoundError):  # another process renamed or deleted it
            images = other.open(other.data if complete else other.partial) if rows else ()
            found |= {theirs[row]: images[row] for row in rows}
    return found


def delete_superseded(files: CacheFiles, fingerprints: Sequence[str]) -> None:
    """Delete caches whose images are all in this cache, if nobody is building them and none will use them.

    These are incomplete caches, and caches of an older format.
    """
    for other, theirs, number in _other_caches(files):
        with other.lock.open("a") as handle:
            if try_lock(handle) and (number < FORMAT or not other.data.exists()):
                done = (
                    np.ones(len(theirs), dtype=bool) if other.data.exists() else other.progress(len(theirs))
                )
                if {theirs[row] for row in np.flatnonzero(done).tolist()}.issubset(fingerprints):
                    other.clear()


def _is_jpeg(file: Path) -> bool:
    with suppress(OSError), file.open("rb") as stream:
        return stream.read(3) == b"\xff\xd8\xff"
    return False


def _other_caches(files: CacheFiles) -> Iterator[tuple[CacheFiles, list[str], int]]:
    """Yield the other caches in the folder with images of the same size: files, fingerprints, format."""
    for index in sorted(files.folder.glob("*.json")):
        try:
            content = json.loads(index.read_text())
            fits = content["format"] <= FORMAT and content["size"] == files.size and index != files.index
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            continue  # just deleted, or not a cache
        if fits:
            yield replace(files, key=index.stem), content["stamps"], content["format"]
