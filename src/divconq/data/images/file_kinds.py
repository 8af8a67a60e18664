"""What is broken or unusual about one image file."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from divconq.data.images.decoding import OddSizeError, UnreadableError, decode, exif_orientation, open_image
from divconq.data.images.files import SIDE

if TYPE_CHECKING:
    from PIL import Image

BEGINNINGS = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"II*\0", b"MM\0*")  # of image files


def file_kinds(file: Path) -> tuple[str, ...]:
    """What is broken, or else unusual, about an image file: some of the keys of ``check.OF_FILES``.

    >>> file_kinds(Path("nowhere.jpg"))
    ('unreadable',)
    """
    try:
        if file.stat().st_size == 0:
            return ("zero_byte",)
        decode(file, SIDE)
        with open_image(file) as image:
            return tuple(_unusual(image))
    except (OSError, UnreadableError) as error:
        return (_broken(file, error.__cause__ or error),)


def _broken(file: Path, error: BaseException) -> str:
    from PIL import Image, UnidentifiedImageError

    if isinstance(error, (OddSizeError, Image.DecompressionBombError)):
        return "odd_size"
    if isinstance(error, UnidentifiedImageError):
        with file.open("rb") as stream:
            return "unreadable" if stream.read(8).startswith(BEGINNINGS) else "not_an_image"
    return "truncated" if "truncated" in str(error).lower() else "unreadable"


def _unusual(image: "Image.Image") -> Iterator[str]:
    if image.mode == "CMYK":
        yield "cmyk"
    if image.mode[0] in "IF" or any(";16" in raw and not raw.startswith("BGR") for raw in _stored_as(image)):
        yield "sixteen_bit"
    if "A" in image.getbands() or "transparency" in image.info:
        yield "alpha"
    if exif_orientation(image) != 1:
        yield "exif_rotated"
    with suppress(Exception):  # what comes after the first frame is not needed
        # phones add a preview to a photo, which makes it an MPO of two frames
        if image.format != "MPO" and getattr(image, "is_animated", False):
            yield "animated"


def _stored_as(image: "Image.Image") -> Iterator[str]:
    """How the file lays out its pixels, such as RGB;16B, where the decoder says so."""
    for tile in getattr(image, "tile", ()):
        arguments = tile[3] if isinstance(tile[3], tuple) else (tile[3],)
        yield from (value for value in arguments if isinstance(value, str))
