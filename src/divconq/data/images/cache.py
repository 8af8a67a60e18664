"""A cache of decoded images: one memory-mapped file of squares.

The files of a cache are in one folder and have its key as name: ``.u8`` holds the images, ``.json`` the
fingerprint of each image. An incomplete cache has ``.partial`` in place of ``.u8``, and ``.done`` with one byte
per image. Any of these files may be deleted at any time.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor
from tqdm import tqdm

from divconq.data.dataset import ImageSet, ImageStore, Subset
from divconq.data.images.cache_files import CacheFiles, exclusive, print_status
from divconq.data.images.cache_reuse import FORMAT, delete_superseded, find_cached
from divconq.data.images.decoding import Box, UnreadableError, decode, prepare_pillow
from divconq.data.images.file_checks import refuse_unreadable
from divconq.data.images.files import ImageFiles
from divconq.data.images.fingerprints import REMEDY, cache_folder, fingerprint
from divconq.data.images.workers import map_in_threads, parallel_map
from divconq.io.atomic import FULL

CHUNK = 1024  # images between two updates of ``.done``


@dataclass(frozen=True)
class Cached:
    """Decoded images in a memory-mapped file.

    >>> Cached(np.zeros((4, 8, 8, 3), dtype=np.uint8), torch.ones(4)).load(torch.tensor([2, 0])).shape
    torch.Size([2, 8, 8, 3])
    """

    images: UInt8[np.ndarray, "n size size 3"]
    aspect: Float[Tensor, " n"]
    files: ImageFiles | None = None  # that the images were decoded from

    @property
    def size(self) -> int:
        """Return the side of the square in pixels."""
        return int(self.images.shape[1])

    def load(self, index: Int64[Tensor, " b"]) -> UInt8[Tensor, "b size size 3"]:
        """Return a copy of the images at ``index``, in that order."""
        return torch.from_numpy(self.images[index.numpy()])  # numpy gathers far faster than torch


@dataclass(frozen=True)
class PartlyCached:
    """Image files of which some are in a cache; the others are decoded on every load."""

    files: ImageFiles
    held: Mapping[int, UInt8[np.ndarray, "size size 3"]]

    @property
    def size(self) -> int:
        """Return the side of the square in pixels."""
        return self.files.size

    @property
    def aspect(self) -> Float[Tensor, " n"]:
        """Return the original width / height of each image."""
        return self.files.aspect

    def load(self, index: Int64[Tensor, " b"]) -> UInt8[Tensor, "b size size 3"]:
        """Return the images at ``index``, in that order."""
        rows = index.tolist()
        images = torch.empty(len(rows), self.size, self.size, 3, dtype=torch.uint8)
        others = [place for place, row in enumerate(rows) if row not in self.held]
        for place, row in enumerate(rows):
            if row in self.held:
                images[place] = torch.from_numpy(np.array(self.held[row]))
        if others:
            images[others] = self.files.load(index[others])
        return images


def cached(images: ImageSet, folder: Path | None = None) -> ImageSet:
    """Return the image set with its files decoded into a cache in ``folder``; by default ``cache_folder()``.

    The key of the cache is a hash of the size and of each file's fingerprint, so a changed file gives a new
    cache. Images in memory are returned unchanged.

    >>> import tempfile
    >>> from PIL import Image
    >>> from divconq.data.sources.folder import flat_folder
    >>> with tempfile.TemporaryDirectory() as photos:
    ...     Image.new("RGB", (60, 40), "red").save(Path(photos, "1.png"))
    ...     cached(flat_folder(photos, size=8), Path(photos, "cache")).store.load(torch.tensor([0]))[0, 0, 0]
    tensor([255,   0,   0], dtype=torch.uint8)
    """
    return replace(images, store=_cached(images.store, cache_folder() if folder is None else folder))


def _cached(store: ImageStore, folder: Path) -> ImageStore:
    if isinstance(store, Subset):
        return replace(store, source=_cached(store.source, folder))
    if not isinstance(store, ImageFiles):
        return store
    fingerprints = _fingerprints(store)
    files = CacheFiles(folder, _key(fingerprints, store.size), store.size)
    try:
        if not files.is_complete(len(fingerprints)):
            folder.mkdir(parents=True, exist_ok=True)
            with exclusive(files.lock):
                if not files.is_complete(len(fingerprints)):
                    _build(files, store, fingerprints)
        return Cached(files.open(files.data), store.aspect, store)
    except OSError as error:
        raise ValueError(f"the cache in {folder} cannot be used ({error}); {REMEDY}") from error


def reuse_cached(images: ImageSet, folder: Path | None = None) -> ImageSet:
    """Return the image set with the images that are in a cache read from there. Nothing is decoded or written now.

    >>> import tempfile
    >>> from PIL import Image
    >>> from divconq.data.sources.folder import flat_folder
    >>> with tempfile.TemporaryDirectory() as photos:
    ...     Image.new("RGB", (60, 40), "red").save(Path(photos, "1.png"))
    ...     images, cache = flat_folder(photos, size=8), Path(photos, "cache")
    ...     before = type(reuse_cached(images, cache).store).__name__
    ...     _ = cached(images, cache)
    ...     before, type(reuse_cached(images, cache).store).__name__
    ('ImageFiles', 'Cached')
    """
    try:
        folder = cache_folder() if folder is None else folder
    except ValueError:  # there is none
        return images
    return replace(images, store=_reused(images.store, folder))


def _reused(store: ImageStore, folder: Path) -> ImageStore:
    if isinstance(store, Subset):
        return replace(store, source=_reused(store.source, folder))
    if not isinstance(store, ImageFiles):
        return store
    fingerprints = _fingerprints(store)
    files = CacheFiles(folder, _key(fingerprints, store.size), store.size)
    try:
        if files.is_complete(len(fingerprints)):
            return Cached(files.open(files.data), store.aspect, store)
        found = find_cached(files, dict(zip(fingerprints, store.files, strict=True)))
    except OSError:
        return store
    held = {row: found[key] for row, key in enumerate(fingerprints) if key in found}
    return PartlyCached(store, held) if held else store


def _build(files: CacheFiles, store: ImageFiles, fingerprints: Sequence[str]) -> None:
    """Complete the partial file, or start a new one, and rename it when it is complete."""
    if files.data.exists():
        print_status(f"{files.data} is damaged (its size is wrong) and is built again")
        files.data.unlink()
    done = files.progress(len(fingerprints))
    _check_room(files, done)
    try:
        reasons = _fill(files, store, fingerprints, done)
    except OSError as error:
        if error.errno not in FULL:
            raise
        files.clear()
        raise ValueError(
            f"{files.folder} was full before the cache was complete, so the partial cache is removed; {REMEDY}"
        ) from error
    refuse_unreadable(store.files, reasons, add=", the others are kept")
    files.partial.replace(files.data)
    files.done.unlink()
    delete_superseded(files, fingerprints)


def _fill(
    files: CacheFiles, store: ImageFiles, fingerprints: Sequence[str], done: Bool[np.ndarray, " n"]
) -> list[str | None]:
    """Write the images that are not ``done``. Return for each image why it is unreadable, or None."""
    if not done.any():
        files.done.unlink(missing_ok=True)
        files.partial.unlink(missing_ok=True)  # not truncated: another process may have mapped it
        files.partial.write_bytes(b"")
        os.truncate(files.partial, len(fingerprints) * files.row)
    _replace(files.index, json.dumps({"format": FORMAT, "size": files.size, "stamps": fingerprints}).encode())
    prepare_pillow()
    held = find_cached(files, dict(zip(fingerprints, store.files, strict=True)))
    boxes = _boxes(store)
    reasons: list[str | None] = [None] * len(fingerprints)

    def write(i: int) -> str | None:
        """Copy or decode an image into the partial file. Return why it is unreadable, or None."""
        image = held.get(fingerprints[i])
        if image is None:
            try:
                image = np.ascontiguousarray(decode(store.files[i], store.size, boxes[i]))
            except UnreadableError as error:
                return error.reason
            if fingerprint(store.files[i], boxes[i]) != fingerprints[i]:
                return "it was changed while it was read: start again"
        with files.partial.open("r+b") as file:  # every worker writes its own rows
            file.seek(i * files.row)
            file.write(image.data)
        return None

    missing = np.flatnonzero(~done).tolist()
    with (
        files.partial.open("r+b") as file,
        tqdm(total=len(done), initial=int(done.sum()), desc="decoding", unit=" images", disable=None) as bar,
    ):
        results = zip(missing, parallel_map(write, missing, store.workers), strict=True)
        for number, (i, reason) in enumerate(results, 1):
            reasons[i], done[i] = reason, reason is None
            bar.update()
            if number % CHUNK == 0 or number == len(missing):
                os.fsync(file.fileno())
                _replace(files.done, done.tobytes())
    return reasons


def _check_room(files: CacheFiles, done: Bool[np.ndarray, " n"]) -> None:
    """Raise a ValueError if the disk has too little room, else print how much will be written."""
    needed, free = int((~done).sum()) * files.row, shutil.disk_usage(files.folder).free
    if needed > free:
        raise ValueError(
            f"the cache needs {_units(needed)} in {files.folder}, got {_units(free)} of free space; {REMEDY}"
        )
    have = f" ({done.sum():,} are already done)" if done.any() else ""
    print_status(f"decoding {len(done):,} images{have}, once: {_units(needed)} to write to {files.data}")


def _key(fingerprints: Sequence[str], size: int) -> str:
    return hashlib.sha256(json.dumps([FORMAT, size, *fingerprints]).encode()).hexdigest()


def _fingerprints(store: ImageFiles) -> list[str]:
    images = [*zip(store.files, _boxes(store), strict=True)]
    return map_in_threads(lambda image: fingerprint(*image), images, store.workers)


def _boxes(store: ImageFiles) -> list[Box] | list[None]:
    if store.boxes is None:
        return [None] * len(store.files)
    return [(x1, y1, x2, y2) for x1, y1, x2, y2 in store.boxes.tolist()]


def _replace(file: Path, content: bytes) -> None:
    """Replace a small file in one step."""
    fresh = file.with_suffix(f"{file.suffix}.new")
    fresh.write_bytes(content)
    fresh.replace(file)


def _units(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"
