"""JPEG thumbnails of the images that the findings refer to."""

import dataclasses
import io
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import UInt8

from divconq.analysis.subject import ImageRef, Split
from divconq.data.dataset import ImageSet

Thumbnails: TypeAlias = dict[tuple[Split, int], bytes]

SIDE = 112  # pixels of the long side
QUALITY = 80
BATCH = 64  # images to load at once


def make_thumbnails(findings: object, images: Mapping[Split, ImageSet], side: int = SIDE) -> Thumbnails:
    """Return a JPEG file for each image in the findings, by split and index. Every image is loaded once.

    A thumbnail has the shape of its image, and its long side has ``side`` pixels. Splits that ``images`` lacks are
    left out.
    """
    wanted: dict[Split, set[int]] = {}
    for ref in image_refs(findings):
        wanted.setdefault(ref.split, set()).add(ref.index)
    made: Thumbnails = {}
    for split, indices in wanted.items():
        if split not in images:
            continue
        store, aspect = images[split].store, images[split].store.aspect.cpu()
        for some in torch.tensor(sorted(indices)).split(BATCH):
            loaded = store.load(some).cpu().numpy()
            for index, square in zip(some.tolist(), loaded, strict=True):
                made[split, index] = thumbnail(square, float(aspect[index]), side)
    return made


def image_refs(value: object) -> Iterator[ImageRef]:
    """Yield every ``ImageRef`` inside a value, with repetitions.

    >>> [ref.index for ref in image_refs({"query": (ImageRef("test", 3, "wren", "a.jpg"), None)})]
    [3]
    """
    if isinstance(value, ImageRef):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from image_refs(getattr(value, field.name))
    elif isinstance(value, dict):
        yield from image_refs(tuple(value.values()))
    elif isinstance(value, tuple) and not (value and isinstance(value[0], int | float)):
        for part in value:
            yield from image_refs(part)


def thumbnail(square: UInt8[np.ndarray, "size size 3"], aspect: float, side: int = SIDE) -> bytes:
    """Return a square image, stretched back to its width / height, as JPEG.

    >>> thumbnail(np.zeros((8, 8, 3), dtype=np.uint8), aspect=1.5)[:2].hex()
    'ffd8'
    """
    from PIL import Image

    width, height = side * min(1.0, aspect), side * min(1.0, 1 / aspect)
    size = max(1, round(width)), max(1, round(height))
    file = io.BytesIO()
    Image.fromarray(square).resize(size, Image.Resampling.LANCZOS).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()
