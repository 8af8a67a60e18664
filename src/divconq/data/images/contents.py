"""Fingerprints of image contents. They identify an image wherever its file lies and whenever it was copied."""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from divconq.data.dataset import ImageSet, ImageStore, InMemory, source_rows
from divconq.data.images.cache import Cached, PartlyCached
from divconq.data.images.files import ImageFiles
from divconq.data.images.fingerprints import cache_folder, fingerprint
from divconq.data.images.workers import map_in_threads
from divconq.io.atomic import write_atomically

BYTES = 16  # of a SHA-256
CHUNK = 256  # images loaded at once


def image_fingerprints(images: ImageSet) -> list[str]:
    """Return a hash of the content of each image.

    The fingerprint of an image file is the SHA-256 of its bytes, followed by its box in brackets. Images in memory may
    have ``marks``. For every other store it is a hash of the pixels and the aspect ratio.

    >>> store = InMemory(torch.zeros(2, 8, 8, 3, dtype=torch.uint8), torch.tensor([1.0, 1.5]))
    >>> first, second = image_fingerprints(ImageSet(store, torch.tensor([0, 1]), ("a", "b"), ("1", "2")))
    >>> len(first), first == second
    (32, False)
    """
    store, rows = source_rows(images.store)
    if isinstance(store, InMemory) and store.marks is not None:
        return [store.marks[row] for row in rows.tolist()]
    if isinstance(store, Cached | PartlyCached) and store.files is not None:
        store = store.files
    if not isinstance(store, ImageFiles):
        return [digest for chunk in rows.split(CHUNK) for digest in _pixel_hashes(store, chunk)]
    hashes = content_hashes([store.files[row] for row in rows.tolist()], store.workers)
    if store.boxes is None:
        return hashes
    boxes = store.boxes[rows].tolist()
    return [digest + box_text(box) for digest, box in zip(hashes, boxes, strict=True)]


def box_text(box: Sequence[float]) -> str:
    """Return a box as text.

    >>> box_text((0.0, 0.0, 20.5, 10.0))
    '[0.0,0.0,20.5,10.0]'
    """
    return f"[{','.join(map(repr, box))}]"


def content_hashes(files: Sequence[Path], workers: int) -> list[str]:
    """Return the SHA-256 of each file, shortened to 32 digits; "" for a file that cannot be read.

    The hashes are cached until the path, size or modification time of one of the files changes.

    >>> content_hashes([Path("nowhere.jpg")], workers=1)
    ['']
    """
    key = hashlib.sha256(" ".join(map_in_threads(fingerprint, files, workers)).encode()).hexdigest()
    with suppress(OSError, ValueError):
        cache = cache_folder() / f"{key}.contents"
        stored = np.fromfile(cache, np.uint8).reshape(len(files), BYTES)
        return [row.tobytes().hex() for row in stored]
    distinct = list(dict.fromkeys(files))
    hashes = dict(zip(distinct, map_in_threads(_file_hash, distinct, workers), strict=True))
    found = [hashes[file] for file in files]
    if all(found):
        with suppress(OSError, ValueError):  # the disk is full or read-only, or there is no folder
            cache = cache_folder() / f"{key}.contents"
            cache.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(cache, lambda path: path.write_bytes(bytes.fromhex("".join(found))))
    return found


def _file_hash(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()[: 2 * BYTES]
    except OSError:
        return ""


def _pixel_hashes(store: ImageStore, rows: torch.Tensor) -> list[str]:
    pixels, aspect = store.load(rows).cpu().contiguous().numpy(), store.aspect.cpu()[rows].double().numpy()
    return [
        hashlib.sha256(shape.tobytes() + image.tobytes()).hexdigest()[: 2 * BYTES]
        for shape, image in zip(aspect, pixels, strict=True)
    ]
