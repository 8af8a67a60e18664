"""The kinds of findings in one image file."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from divconq.data.images.decoding import OddSizeError, UnreadableError, decode, exif_orientation, open_image
from divconq.data.images.file_checks import SMALLEST_SIDE
from divconq.data.images.pixels import PixelError, has_alpha, raw_modes

if TYPE_CHECKING:
    from PIL import Image

MAGIC = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"II*\0", b"MM\0*")  # first bytes of image files


def kinds_of_file(file: Path) -> tuple[str, ...]:
    """Return the findings about an image file, as keys of ``FILE_KINDS``; empty if there are none.

    >>> kinds_of_file(Path("nowhere.jpg"))
    ('unreadable',)
    """
    try:
        if file.stat().st_size == 0 and file.is_file():
            return ("zero_byte",)
        decode(file, SMALLEST_SIDE)
        with open_image(file) as image:
            return tuple(_unusual(image))
    except (OSError, UnreadableError) as error:
        return (_broken(file, error.__cause__ or error),)


def _broken(file: Path, error: BaseException) -> str:
    from PIL import Image, UnidentifiedImageError

    if isinstance(error, (OddSizeError, Image.DecompressionBombError)):
        return "odd_size"
    if isinstance(error, PixelError):
        return "unknown_range"
    if isinstance(error, UnidentifiedImageError):
        with file.open("rb") as stream:
            return "unreadable" if stream.read(8).startswith(MAGIC) else "not_an_image"
    return "truncated" if "truncated" in str(error).lower() else "unreadable"


def _unusual(image: "Image.Image") -> Iterator[str]:
    if image.mode == "CMYK":
        yield "cmyk"
    if image.mode == "LAB":
        yield "lab"
    if image.mode[0] == "I" or any(";16" in raw and not raw.startswith("BGR") for raw in raw_modes(image)):
        yield "sixteen_bit"
    if has_alpha(image):
        yield "alpha"
    if exif_orientation(image) != 1:
        yield "exif_rotated"
    with suppress(Exception):  # broken data after the first frame does not matter
        # Phones add a preview to a photo, which makes it an MPO with two frames.
        if image.format != "MPO" and getattr(image, "is_animated", False):
            yield "animated"
