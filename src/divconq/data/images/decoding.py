"""Decode one image file: upright, in RGB, resized to a square as ``batches.views`` describes."""

import stat
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
from divconq.data.images.memory import decoding_bytes
from divconq.data.images.pixels import ToRGB, check_pixels, rgb_converter, tiff_tag

if TYPE_CHECKING:
    from PIL import Image

WIDTH, HEIGHT = 256, 257  # TIFF tags
ORIENTATION = 0x0112  # EXIF tag: the rotation of the stored pixels
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # not EPS, which would start a program
MOST_PIXELS = 178_956_970  # Pillow's own limit, against small files that expand to gigabytes
MOST_BYTES = 2_000_000_000  # memory to decode one image
REDUCING_GAP = 3.0  # pixels are averaged in blocks until the image is this many times as large as needed
STRIP = 1 << 20  # pixels that are converted to RGB at a time
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


class NoFileError(Exception):
    """Raised for a pipe, socket or device, which could be read forever."""


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
        if not stat.S_ISREG(file.stat().st_mode):
            raise NoFileError("not a regular file")
        # Of a path, Pillow may map the file into memory. The process is killed if the file is then cut short.
        with file.open("rb") as stream, Image.open(stream, formats=FORMATS) as image:
            check_pixels(image)
            _check_size(image)
            yield image
    except Exception as error:  # each format raises its own errors
        raise UnreadableError(file, _reason(error)) from error


def _check_size(image: "Image.Image") -> None:
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise OddSizeError(f"{width:,} x {height:,} pixels, more than {MOST_PIXELS:,}")
    if max(width, height) > LONGEST_SHAPE * min(width, height):
        raise OddSizeError(
            f"{width:,} x {height:,} pixels, more than {LONGEST_SHAPE:,} times as long as wide"
        )
    if (needed := decoding_bytes(image)) > MOST_BYTES:
        raise OddSizeError(
            f"{width:,} x {height:,} pixels, which take {needed:,} bytes to decode, more than {MOST_BYTES:,}"
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
    with open_image(file) as image:
        return square(image, size, box)


def square(image: "Image.Image", size: int, box: Box | None = None) -> UInt8[np.ndarray, "size size 3"]:
    """Return an opened image as ``decode`` does.

    >>> from PIL import Image
    >>> square(Image.new("RGB", (60, 40)), 32).shape
    (32, 32, 3)
    """
    from PIL import Image

    convert = rgb_converter(image)
    if image.format == "TIFF":
        image.load()  # Pillow rotates a TIFF by itself
    orientation = 1 if image.format == "TIFF" else exif_orientation(image)
    full = image.size
    x1, y1, x2, y2 = (0.0, 0.0, 1.0, 1.0) if box is None else _stored_box(box, image.size, orientation)
    needed = (int(3 * size / (x2 - x1)), int(3 * size / (y2 - y1)))
    image.draft("RGB", needed)  # decodes a large JPEG at 1/8, 1/4 or 1/2 of its size
    width, height = image.size
    shown = _resized_size((x2 - x1) * full[0] / ((y2 - y1) * full[1]), size)
    resized = _resize(image, convert, (x1 * width, y1 * height, x2 * width, y2 * height), shown)
    return _upright(np.asarray(resized.resize((size, size), Image.Resampling.LANCZOS)), orientation)


def _resize(image: "Image.Image", convert: ToRGB, box: Box, size: tuple[int, int]) -> "Image.Image":
    """Return a box of the image in RGB at this size.

    First, blocks of whole pixels are averaged, a strip of the image at a time: a copy of all pixels in RGB would
    take up to four times the memory of the image.
    """
    from PIL import Image

    left, top, right, bottom = int(box[0]), int(box[1]), ceil(box[2]), ceil(box[3])
    block = (
        max(int((box[2] - box[0]) / size[0] / REDUCING_GAP), 1),
        max(int((box[3] - box[1]) / size[1] / REDUCING_GAP), 1),
    )
    rows = max(STRIP // (right - left) // block[1], 1) * block[1]
    reduced = Image.new("RGB", (ceil((right - left) / block[0]), ceil((bottom - top) / block[1])))
    for first in range(top, bottom, rows):
        strip = convert(image.crop((left, first, right, min(first + rows, bottom))))
        reduced.paste(strip.reduce(block), (0, (first - top) // block[1]))
    inside = (  # the filter must not read pixels outside of the box
        (box[0] - left) / block[0],
        (box[1] - top) / block[1],
        (box[2] - left) / block[0],
        (box[3] - top) / block[1],
    )
    return reduced.resize(size, Image.Resampling.BILINEAR, box=inside)


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


def upright_size(image: "Image.Image") -> tuple[int, int]:
    """Return width and height after the EXIF rotation, from the header.

    >>> from PIL import Image
    >>> upright_size(Image.new("RGB", (60, 40)))
    (60, 40)
    """
    width, height = image.size
    if image.format == "TIFF":  # Pillow may have exchanged them in ``size``
        width, height = tiff_tag(image, WIDTH, width), tiff_tag(image, HEIGHT, height)
    return (height, width) if exif_orientation(image) >= 5 else (width, height)


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
