"""Decode one image file: upright, in RGB, resized to a square as ``batches.views`` describes."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from jaxtyping import UInt8

from divconq.data.batches.views import LONGEST, shown_side, true_size

if TYPE_CHECKING:
    from PIL import Image

ORIENTATION = 0x0112  # EXIF tag: the rotation of the stored pixels
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # not EPS, which would start a program
MOST_PIXELS = 178_956_970  # Pillow's own limit, against small files that expand to gigabytes
LONGEST_SHAPE = 1000  # times as long as wide; a crop of a longer image would show nothing

warnings.filterwarnings("ignore", "Image size .* could be decompression bomb")  # MOST_PIXELS is the limit

Box: TypeAlias = tuple[float, float, float, float]


def prepare_pillow() -> None:
    """Load Pillow's formats and let it reuse memory. Call once, before threads and processes start.

    Without reuse, page faults take a fifth of the decoding time.

    >>> prepare_pillow()
    """
    from PIL import Image

    Image.init()
    Image.core.set_blocks_max(8)  # type: ignore[attr-defined]  # blocks of at most 16 MB


class UnreadableError(ValueError):
    """Raised for an image file that cannot be decoded, with the reason.

    >>> print(UnreadableError(Path("1.jpg"), "image file is truncated"))
    1.jpg cannot be decoded (image file is truncated); remove it or save it again as JPEG or PNG
    """

    def __init__(self, file: Path, reason: str) -> None:
        super().__init__(f"{file} cannot be decoded ({reason}); remove it or save it again as JPEG or PNG")
        self.file, self.reason = file, reason


class OddSizeError(Exception):
    """Raised for an image that is too large, or far longer than wide."""


@contextmanager
def open_image(file: Path) -> "Iterator[Image.Image]":
    """Open an image file of one of ``FORMATS``. Every error inside the block becomes an UnreadableError.

    Only the header is read, so a huge image is refused before memory is allocated for it.

    >>> with open_image(Path("nowhere.jpg")): pass
    Traceback (most recent call last):
    divconq.data.images.decoding.UnreadableError: nowhere.jpg cannot be decoded (No such file or directory); ...
    """
    from PIL import Image

    try:
        with Image.open(file, formats=FORMATS) as image:
            _check_size(*image.size)
            yield image
    except Exception as error:  # each format raises its own errors
        raise UnreadableError(file, _reason(error)) from error


def _check_size(width: int, height: int) -> None:
    if width * height > MOST_PIXELS:
        raise OddSizeError(f"{width:,} x {height:,} pixels, more than {MOST_PIXELS:,}")
    if max(width, height) > LONGEST_SHAPE * min(width, height):
        raise OddSizeError(
            f"{width:,} x {height:,} pixels, more than {LONGEST_SHAPE:,} times as long as wide"
        )


def _reason(error: Exception) -> str:
    from PIL import Image, UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "not an image of a known format"
    if isinstance(error, Image.DecompressionBombError):
        return f"more than {MOST_PIXELS:,} pixels"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def decode(file: Path, size: int, box: Box | None = None) -> UInt8[np.ndarray, "size size 3"]:
    """Return an image, or a box of it, upright, in RGB, as a square of side ``size``.

    Transparent parts become white.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as photos:
    ...     Image.new("RGB", (60, 40)).save(Path(photos, "1.jpg"))
    ...     decode(Path(photos, "1.jpg"), 32, (10, 0, 30, 40)).shape
    (32, 32, 3)
    """
    from PIL import Image

    with open_image(file) as image:
        orientation = exif_orientation(image)
        full = image.size
        x1, y1, x2, y2 = (0.0, 0.0, 1.0, 1.0) if box is None else _stored_box(box, image.size, orientation)
        needed = (int(3 * size / (x2 - x1)), int(3 * size / (y2 - y1)))
        image.draft("RGB", needed)  # decodes a large JPEG at 1/8, 1/4 or 1/2 of its size
        width, height = image.size
        left, top, right, bottom = x1 * width, y1 * height, x2 * width, y2 * height
        x, y = int(left), int(top)
        part = _rgb(image).crop((x, y, ceil(right), ceil(bottom)))  # the filter must not read pixels outside
        resized = part.resize(
            _resized_size((x2 - x1) * full[0] / ((y2 - y1) * full[1]), size),
            Image.Resampling.BILINEAR,
            box=(left - x, top - y, right - x, bottom - y),
            reducing_gap=3.0,
        )
        square = resized.resize((size, size), Image.Resampling.LANCZOS)
    return _upright(np.asarray(square), orientation)


def _resized_size(aspect: float, size: int) -> tuple[int, int]:
    """Return width and height of the resized image, before it becomes a square."""
    width, height = true_size(torch.tensor([aspect], dtype=torch.float64), shown_side(size))
    longest = LONGEST * size
    return min(int(width), longest), min(int(height), longest)


def exif_orientation(image: "Image.Image") -> int:
    """Return the EXIF orientation, 1 to 8; 1 is upright.

    >>> from PIL import Image
    >>> exif_orientation(Image.new("RGB", (60, 40)))
    1
    """
    if image.format == "PNG" and "exif" not in image.info:
        return 1  # getexif() would decode the whole image
    value = image.getexif().get(ORIENTATION, 1)
    return value if value in range(1, 9) else 1


def _upright(image: UInt8[np.ndarray, "size size 3"], orientation: int) -> UInt8[np.ndarray, "size size 3"]:
    if orientation >= 5:
        image = image.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        image = image[:, ::-1]
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    return image


def _stored_box(box: Box, size: tuple[int, int], orientation: int) -> Box:
    """Map a box of the upright image to the stored pixels, in shares of their size: the inverse of _upright."""
    width, height = size[::-1] if orientation >= 5 else size
    x1, y1, x2, y2 = box[0] / width, box[1] / height, box[2] / width, box[3] / height
    if orientation in (3, 4, 7, 8):
        y1, y2 = 1 - y2, 1 - y1
    if orientation in (2, 3, 6, 7):
        x1, x2 = 1 - x2, 1 - x1
    return (y1, x1, y2, x2) if orientation >= 5 else (x1, y1, x2, y2)


def _rgb(image: "Image.Image") -> "Image.Image":
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits; convert() would clip them at 255
        image = Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8))
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")
