"""Reuse images from another cache in the same folder.

A cache is for one list of files. If a photo is added, repaired or removed, or if classes are split in another
way, a new cache is built: only new images are decoded, the others are copied.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
from jaxtyping import UInt8

from divconq.data.images.cache_files import CacheFiles, try_lock

FORMAT = 3  # increase this number when decoding gives other pixels


def find_cached(files: CacheFiles, fingerprints: set[str]) -> dict[str, UInt8[np.ndarray, "size size 3"]]:
    """Return the images of other caches, complete or not, that have these fingerprints; keys are fingerprints."""
    found: dict[str, UInt8[np.ndarray, "size size 3"]] = {}
    for other, theirs in _other_caches(files):
        complete = other.is_complete(len(theirs))
        done = np.ones(len(theirs), dtype=bool) if complete else other.progress(len(theirs))
        rows = [row for row in np.flatnonzero(done).tolist() if theirs[row] in fingerprints]
        with suppress(FileNotFoundError):  # another process renamed or deleted it
            images = other.open(other.data if complete else other.partial) if rows else ()
            found |= {theirs[row]: images[row] for row in rows}
    return found


def delete_superseded(files: CacheFiles, fingerprints: Sequence[str]) -> None:
    """Delete incomplete caches that nobody is building and whose images are all in this cache."""
    for other, theirs in _other_caches(files):
        with other.lock.open("a") as handle:
            if try_lock(handle) and not other.data.exists():
                held = {theirs[row] for row in np.flatnonzero(other.progress(len(theirs))).tolist()}
                if held.issubset(fingerprints):
                    other.clear()


def _other_caches(files: CacheFiles) -> Iterator[tuple[CacheFiles, list[str]]]:
    """Yield the other caches in the folder with images of the same size, and their fingerprints."""
    for index in sorted(files.folder.glob("*.json")):
        try:
            content = json.loads(index.read_text())
            fits = (content["format"], content["size"]) == (FORMAT, files.size) and index != files.index
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            continue  # just deleted, or not a cache
        if fits:
            yield replace(files, key=index.stem), content["stamps"]
