"""Convert the pixels of an opened image file to RGB bytes, or refuse pixels whose brightness is not certain."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

ToRGB: TypeAlias = "Callable[[Image.Image], Image.Image]"

BITS, PHOTOMETRIC, SAMPLE_FORMAT = 258, 262, 339  # TIFF tags
UNSIGNED = 1  # sample format
SAMPLE_NAMES = {2: "signed integers", 3: "floats"}
FROM_WHITE = 0  # photometric interpretation: 0 is white


class PixelError(Exception):
    """Raised for pixels whose range is unknown, so that no brightness in 8 bits is certain."""


def check_pixels(image: "Image.Image") -> None:
    """Raise a PixelError if the header shows pixels without a fixed range: floats, signed, or more than 16 bits.

    >>> from PIL import Image
    >>> check_pixels(Image.new("F", (4, 4)))
    Traceback (most recent call last):
    divconq.data.images.pixels.PixelError: 32-bit floats have no fixed range
    """
    if image.mode == "F":
        raise PixelError("32-bit floats have no fixed range")
    if image.format == "TIFF":
        bits, samples = tiff_tag(image, BITS, 1), tiff_tag(image, SAMPLE_FORMAT, UNSIGNED)
        if samples != UNSIGNED or bits > 16:
            raise PixelError(f"{bits}-bit {SAMPLE_NAMES.get(samples, 'integers')} have no fixed range")
        if bits > 8 and any(len(raw) == 1 for raw in raw_modes(image)):  # Pillow would read 8 bits of them
            raise PixelError(f"{bits}-bit channels in separate planes cannot be read")
    if image.format == "PNG" and "RGB;16B" in raw_modes(image) and "transparency" in image.info:
        raise PixelError("a transparent colour of 16 bits cannot be compared with pixels of 8 bits")


def rgb_converter(image: "Image.Image") -> ToRGB:
    """Return a function that converts the image, or a part of it, to RGB. Transparent parts become white.

    Call it before the pixels are loaded, because loading drops a part of the header.

    >>> from PIL import Image
    >>> grey = Image.new("L", (4, 4), 7)
    >>> rgb_converter(grey)(grey).getpixel((0, 0))
    (7, 7, 7)
    """
    if image.mode.startswith("I"):
        bits = tiff_tag(image, BITS, 16) if image.format == "TIFF" else 16
        inverted = image.format == "TIFF" and tiff_tag(image, PHOTOMETRIC, 1) == FROM_WHITE
        key = image.info.get("transparency")
        return lambda part: _on_white(_from_16_bits(part, bits, inverted, key))
    for raw, step in (("L;2", 85), ("L;4", 17)):
        if raw in raw_modes(image) and "transparency" in image.info:
            image.info["transparency"] *= step  # in the file it is a value of 2 or 4 bits
    return _on_white


def has_alpha(image: "Image.Image") -> bool:
    """Return whether pixels can be transparent.

    >>> from PIL import Image
    >>> has_alpha(Image.new("LA", (4, 4))), has_alpha(Image.new("LAB", (4, 4)))  # A of LAB is a colour
    (True, False)
    """
    return image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info


def tiff_tag(image: "Image.Image", number: int, default: int) -> int:
    """Return a tag of a TIFF, the largest value if it has several, or ``default`` if it has none.

    >>> import io
    >>> from PIL import Image
    >>> Image.new("L", (60, 40)).save(file := io.BytesIO(), "TIFF")
    >>> tiff_tag(Image.open(file), BITS, 1)
    8
    """
    value: int | tuple[int, ...] = image.tag_v2.get(number, default)  # type: ignore[attr-defined]
    return max(value) if isinstance(value, tuple) else value


def raw_modes(image: "Image.Image") -> set[str]:
    """Return the pixel layouts of the file that the decoder reports, such as RGB;16B; none after loading.

    >>> from PIL import Image
    >>> raw_modes(Image.new("RGB", (4, 4)))
    set()
    """
    tiles = [tile[3] for tile in getattr(image, "tile", ())]
    arguments = [tile if isinstance(tile, tuple) else (tile,) for tile in tiles]
    return {value for values in arguments for value in values if isinstance(value, str)}


def _from_16_bits(image: "Image.Image", bits: int, inverted: bool, key: int | None) -> "Image.Image":
    """Convert grey values of up to 16 bits, which ``convert`` would clip at 255; ``key`` is transparent."""
    from PIL import Image

    values = np.asarray(image)
    grey = (values >> (bits - 8)).astype(np.uint8)
    result = Image.fromarray(255 - grey if inverted else grey)
    if key is not None:
        result.putalpha(Image.fromarray(np.where(values == key, 0, 255).astype(np.uint8)))
    return result


def _on_white(image: "Image.Image") -> "Image.Image":
    from PIL import Image

    if image.mode == "La":  # premultiplied
        image = image.convert("LA")
    if has_alpha(image):
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")
