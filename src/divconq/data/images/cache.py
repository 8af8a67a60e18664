"""Images decoded once: one memory-mapped file of squares.

A cache is named by its key and has its files side by side in one folder: ``.u8`` holds the images, ``.json``
the stamp of each. While it is being built there are ``.partial`` in place of ``.u8``, and ``.done``, one byte
for each image. Any of them may be deleted at any time; images that another cache in the folder has are copied.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor
from tqdm import tqdm

from divconq.data.dataset import Chosen, ImageSet, Pixels
from divconq.data.images.cache_files import Place, alone, say, try_lock
from divconq.data.images.decoding import Box, UnreadableError, decode
from divconq.data.images.files import Decoded, refuse_unreadable
from divconq.data.images.fingerprints import cache_folder, for_each, stamp
from divconq.data.images.workers import work_on
from divconq.io.atomic import FULL

FORMAT = 3  # to be raised when decoding gives other pixels
CHUNK = 1024  # images between two marks of how far the building is
REMEDY = (
    "set DIVCONQ_CACHE to a folder with room, or add --no-cache to decode images whenever they are needed"
)


@dataclass(frozen=True)
class Cached:
    """Decoded images in a memory-mapped file.

    >>> Cached(np.zeros((4, 8, 8, 3), dtype=np.uint8), torch.ones(4)).load(torch.tensor([2, 0])).shape
    torch.Size([2, 8, 8, 3])
    """

    images: UInt8[np.ndarray, "n size size 3"]
    aspect: Float[Tensor, " n"]

    @property
    def size(self) -> int:
        """The side of the square."""
        return int(self.images.shape[1])

    def load(self, index: Int64[Tensor, " b"]) -> UInt8[Tensor, "b size size 3"]:
        """Copy the images at ``index``, in that order."""
        return torch.from_numpy(self.images[index.numpy()])  # numpy gathers far faster than torch


def cached(images: ImageSet, folder: Path | None = None) -> ImageSet:
    """The same images out of a file in ``folder``, into which they are decoded the first time.

    The file goes by a hash of the side S and of each image's path, size, time and box, so a change is noticed.
    Images that are not decoded from files stay as they are.

    >>> import tempfile
    >>> from PIL import Image
    >>> from divconq.data.sources.folder import flat_folder
    >>> with tempfile.TemporaryDirectory() as photos:
    ...     Image.new("RGB", (60, 40), "red").save(Path(photos, "1.png"))
    ...     cached(flat_folder(photos, size=8), Path(photos, "cache")).pixels.load(torch.tensor([0]))[0, 0, 0]
    tensor([255,   0,   0], dtype=torch.uint8)
    """
    return replace(images, pixels=_cached(images.pixels, cache_folder() if folder is None else folder))


def _cached(pixels: Pixels, folder: Path) -> Pixels:
    if isinstance(pixels, Chosen):
        return replace(pixels, source=_cached(pixels.source, folder))
    if not isinstance(pixels, Decoded):
        return pixels
    stamps = _stamps(pixels)
    place = Place(folder, _key(stamps, pixels.size), pixels.size)
    try:
        if not place.holds(len(stamps)):
            place.folder.mkdir(parents=True, exist_ok=True)
            with alone(place.lock):
                if not place.holds(len(stamps)):
                    _build(place, pixels, stamps)
        return Cached(place.open(place.data), pixels.aspect)
    except OSError as error:
        raise ValueError(f"the cache in {place.folder} cannot be used ({error}); {REMEDY}") from error


def _build(place: Place, pixels: Decoded, stamps: Sequence[str]) -> None:
    """Fill the unfinished file, where it is found; only a complete one gets its final name."""
    if place.data.exists():
        say(f"{place.data} is damaged (its size is wrong) and is built again")
        place.data.unlink()
    done = place.progress(len(stamps))
    _announce(place, done)
    try:
        trouble = _fill(place, pixels, stamps, done)
    except OSError as error:
        if error.errno not in FULL:
            raise
        place.clear()
        raise ValueError(
            f"{place.folder} was full before the cache was complete, so what there was of it is removed; {REMEDY}"
        ) from error
    refuse_unreadable(pixels.files, trouble, add=", the others are kept")
    place.partial.replace(place.data)
    place.done.unlink()
    for other, theirs in _others(place):
        _drop_if_superseded(other, theirs, stamps)


def _fill(
    place: Place, pixels: Decoded, stamps: Sequence[str], done: Bool[np.ndarray, " n"]
) -> list[str | None]:
    """Write what is not ``done`` yet and can be read, and mark it as done; returns the trouble with the others."""
    if not done.any():
        place.done.unlink(missing_ok=True)
        place.partial.unlink(missing_ok=True)  # others may look at what there was of it
        place.partial.write_bytes(b"")
        os.truncate(place.partial, len(stamps) * place.row)
    _write(place.index, json.dumps({"format": FORMAT, "size": place.size, "stamps": stamps}).encode())
    elsewhere = _elsewhere(place, set(stamps))
    boxes = _boxes(pixels)
    trouble: list[str | None] = [None] * len(stamps)

    def write(i: int) -> str | None:
        """Decode an image, or copy it, into the file; returns what is wrong with it."""
        image = elsewhere.get(stamps[i])
        if image is None:
            try:
                image = np.ascontiguousarray(decode(pixels.files[i], pixels.size, boxes[i]))
            except UnreadableError as error:
                return error.reason
            if stamp(pixels.files[i], boxes[i]) != stamps[i]:
                return "it was changed while it was read: start again"
        with place.partial.open("r+b") as own:  # others write elsewhere in it at the same time
            own.seek(i * place.row)
            own.write(image.data)
        return None

    wanted = np.flatnonzero(~done).tolist()
    with (
        place.partial.open("r+b") as file,
        tqdm(total=len(done), initial=int(done.sum()), desc="decoding", unit=" images", disable=None) as bar,
    ):
        for number, (row, wrong) in enumerate(
            zip(wanted, work_on(write, wanted, pixels.workers), strict=True), 1
        ):
            trouble[row], done[row] = wrong, wrong is None
            bar.update()
            if number % CHUNK == 0 or number == len(wanted):
                os.fsync(file.fileno())
                _write(place.done, done.tobytes())
    return trouble


def _announce(place: Place, done: Bool[np.ndarray, " n"]) -> None:
    """Say how much will be written, unless there is no room for it."""
    needed, free = int((~done).sum()) * place.row, shutil.disk_usage(place.folder).free
    if needed > free:
        raise ValueError(
            f"the cache needs {_units(needed)} in {place.folder}, got {_units(free)} that are free; {REMEDY}"
        )
    have = f", of which {done.sum():,} are there" if done.any() else ""
    say(f"decoding {len(done):,} images{have}, once: {_units(needed)} to write to {place.data}")


def _others(place: Place) -> Iterator[tuple[Place, list[str]]]:
    """The other caches in the folder with images of the same side, and what they are made of."""
    for index in sorted(place.folder.glob("*.json")):
        try:
            about = json.loads(index.read_text())
            fits = (about["format"], about["size"]) == (FORMAT, place.size) and index != place.index
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            continue  # just deleted, or not ours
        if fits:
            yield replace(place, key=index.stem), about["stamps"]


def _elsewhere(place: Place, stamps: set[str]) -> dict[str, UInt8[np.ndarray, "size size 3"]]:
    """Images with these stamps that other caches, finished or not, have."""
    found: dict[str, UInt8[np.ndarray, "size size 3"]] = {}
    for other, theirs in _others(place):
        complete = other.holds(len(theirs))
        done = np.ones(len(theirs), dtype=bool) if complete else other.progress(len(theirs))
        rows = [row for row in np.flatnonzero(done).tolist() if theirs[row] in stamps]
        with suppress(FileNotFoundError):  # renamed or deleted meanwhile
            images = other.open(other.data if complete else other.partial) if rows else ()
            found |= {theirs[row]: images[row] for row in rows}
    return found


def _drop_if_superseded(other: Place, theirs: Sequence[str], stamps: Sequence[str]) -> None:
    """Delete a cache that nobody will finish: it was left incomplete, and all that it has is in ours."""
    with other.lock.open("a") as handle:
        if try_lock(handle) and not other.data.exists():
            has = {theirs[row] for row in np.flatnonzero(other.progress(len(theirs))).tolist()}
            if has.issubset(stamps):
                other.clear()


def _key(stamps: Sequence[str], size: int) -> str:
    return hashlib.sha256(json.dumps([FORMAT, size, *stamps]).encode()).hexdigest()


def _stamps(pixels: Decoded) -> list[str]:
    return for_each(
        lambda one: stamp(*one), [*zip(pixels.files, _boxes(pixels), strict=True)], pixels.workers
    )


def _boxes(pixels: Decoded) -> list[Box] | list[None]:
    if pixels.boxes is None:
        return [None] * len(pixels.files)
    return [(x1, y1, x2, y2) for x1, y1, x2, y2 in pixels.boxes.tolist()]


def _write(file: Path, content: bytes) -> None:
    """Replace a small file, at once."""
    fresh = file.with_suffix(f"{file.suffix}.new")
    fresh.write_bytes(content)
    fresh.replace(file)


def _units(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"
