"""Memory that decoding an image file takes, estimated from its header."""

from typing import TYPE_CHECKING

from divconq.data.images.pixels import tiff_tag

if TYPE_CHECKING:
    from PIL import Image

STORED = {
    "1": 1,
    "L": 1,
    "P": 1,
    "I;16": 2,
    "I;16B": 2,
    "I;16L": 2,
}  # bytes that Pillow keeps per pixel; else 4
WEBP = 16  # bytes per pixel: libwebp decodes into a copy of a copy
PLAIN = 14  # bytes per pixel: Pillow reads PPM of other depths than 8 and 16 bits in Python
WIDTH, HEIGHT, BITS, ORIENTATION, SAMPLES = 256, 257, 258, 274, 277  # TIFF tags
ROWS, TILE_WIDTH, TILE_HEIGHT = 278, 322, 323


def decoding_bytes(image: "Image.Image") -> int:
    """Return the most memory, in bytes, that decoding an opened file takes at its full size.

    >>> from PIL import Image
    >>> decoding_bytes(Image.new("1", (13_000, 13_000)))
    169000000
    """
    pixels = image.width * image.height
    stored = pixels * STORED.get(image.mode, 4)
    if image.format == "WEBP":
        return pixels * WEBP
    if image.format == "PPM" and image.tile[0][0] != "raw":  # type: ignore[attr-defined]
        return pixels * PLAIN
    if image.format == "TIFF":
        turned = tiff_tag(image, ORIENTATION, 1) > 1
        return stored * (2 if turned else 1) + _strip_bytes(image)
    if "progressive" in image.info:  # the coefficients of all pixels, each of two bytes
        return stored + 2 * len(image.getbands()) * pixels
    return stored


def _strip_bytes(image: "Image.Image") -> int:
    """Return the size of a strip or tile of a TIFF, which is decompressed as a whole."""
    width, height = tiff_tag(image, WIDTH, 0), tiff_tag(image, HEIGHT, 0)  # before a rotation
    height = min(tiff_tag(image, TILE_HEIGHT, tiff_tag(image, ROWS, height)), height)
    width = min(tiff_tag(image, TILE_WIDTH, width), width)
    return width * height * tiff_tag(image, BITS, 1) * tiff_tag(image, SAMPLES, 1) // 8
