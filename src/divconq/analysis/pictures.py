"""Small JPEG pictures of the images that findings name."""

import dataclasses
import io
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from jaxtyping import UInt8

from divconq.analysis.findings import Findings, Shown, Split
from divconq.data.dataset import ImageSet

SIDE = 112  # pixels of the long side
QUALITY = 80
BATCH = 64  # images that are decoded at once


def pictures(
    findings: Findings, images: Mapping[Split, ImageSet], side: int = SIDE
) -> dict[tuple[Split, int], bytes]:
    """JPEG files of exactly the images that are shown, by split and index, each read once.

    They have their true width and height, the long one being ``side``. Splits that are not in ``images`` have none.
    """
    wanted: dict[Split, set[int]] = {}
    for shown in named(findings):
        wanted.setdefault(shown.split, set()).add(shown.index)
    made: dict[tuple[Split, int], bytes] = {}
    for split, indices in wanted.items():
        if split not in images:
            continue
        pixels, aspect = images[split].store, images[split].store.aspect.cpu()
        for some in torch.tensor(sorted(indices)).split(BATCH):
            loaded = pixels.load(some).cpu().numpy()
            for index, square in zip(some.tolist(), loaded, strict=True):
                made[split, index] = thumbnail(square, float(aspect[index]), side)
    return made


def named(finding: object) -> Iterator[Shown]:
    """Every image that a finding names, as often as it does.

    >>> from divconq.analysis.findings import Found
    >>> [shown.index for shown in named((Found(Shown("test", 3, "wren", "a.jpg"), True), None))]
    [3]
    """
    if isinstance(finding, Shown):
        yield finding
    elif dataclasses.is_dataclass(finding):
        for field in dataclasses.fields(finding):
            yield from named(getattr(finding, field.name))
    elif isinstance(finding, tuple) and not (finding and isinstance(finding[0], int | float)):
        for part in finding:
            yield from named(part)


def thumbnail(square: UInt8[np.ndarray, "size size 3"], aspect: float, side: int = SIDE) -> bytes:
    """An image that was squashed to a square, at its true width / height, as JPEG.

    >>> thumbnail(np.zeros((8, 8, 3), dtype=np.uint8), aspect=1.5)[:2].hex()
    'ffd8'
    """
    from PIL import Image

    width, height = side * min(1.0, aspect), side * min(1.0, 1 / aspect)
    size = max(1, round(width)), max(1, round(height))
    file = io.BytesIO()
    Image.fromarray(square).resize(size, Image.Resampling.LANCZOS).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()
