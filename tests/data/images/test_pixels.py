"""Every pixel layout of the formats that we open is read right, or refused. Files are written byte by byte."""

import itertools
import struct
import zlib

import numpy as np
import PIL
import pytest
from PIL import Image

from divconq.data.images.decoding import UnreadableError, decode
from divconq.data.images.sizes import upright_sizes

SIDE = 8
OLD_PILLOW = int(PIL.__version__.split(".")[0]) < 12  # knows fewer layouts of TIFF
OR_REFUSED = " (or refused)"  # Pillow does not know this layout, or reads it wrong
COLOURS = [(0, 0, 0), (255, 255, 255), (200, 100, 50), (3, 90, 250)]


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(bits, colour_type, row, *chunks):
    """Return a PNG whose rows are all ``row``."""
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", SIDE, SIDE, bits, colour_type, 0, 0, 0))
        + b"".join(chunk(name, data) for name, data in chunks)
        + chunk(b"IDAT", zlib.compress((b"\0" + row) * SIDE))
        + chunk(b"IEND", b"")
    )


def tiff(bits, row, *, photometric=1, order="<", planes=1, compress=False, orientation=None, **more):
    """Return a TIFF of one strip per plane whose rows are all ``row``; ``more`` are tags by number, as t339=2."""
    count = len(bits)
    plane = row * SIDE
    strips = (
        [plane]
        if planes == 1
        else [plane[i * len(plane) // count :][: len(plane) // count] for i in range(count)]
    )
    if planes == 2:
        size = len(row) // SIDE // count  # bytes of a sample
        samples = [row[i * size : (i + 1) * size] for i in range(count)]
        strips = [sample * SIDE * SIDE for sample in samples]
    if compress:
        strips = [zlib.compress(strip) for strip in strips]
    tags = {
        256: [SIDE],
        257: [SIDE],
        258: list(bits),
        259: [8 if compress else 1],
        262: [photometric],
        277: [count],
        278: [SIDE],
        284: [planes],
    }
    tags |= {} if orientation is None else {274: [orientation]}
    tags |= {int(name[1:]): value if isinstance(value, list) else [value] for name, value in more.items()}
    tags |= {273: [0] * len(strips), 279: [len(strip) for strip in strips]}
    start = 8 + 2 + 12 * len(tags) + 4
    outside = sum(2 * len(values) for values in tags.values() if len(values) > 2)
    offset = start + outside
    tags[273] = []
    for strip in strips:
        tags[273].append(offset)
        offset += len(strip)
    entries, tail = b"", b""
    for tag, values in sorted(tags.items()):
        data = struct.pack(f"{order}{len(values)}H", *values)
        if len(data) > 4:
            field = struct.pack(order + "I", start + len(tail))
            tail += data
        else:
            field = data.ljust(4, b"\0")
        entries += struct.pack(order + "HHI", tag, 3, len(values)) + field
    assert len(tail) == outside
    heading = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", 8)
    return heading + struct.pack(order + "H", len(tags)) + entries + bytes(4) + tail + b"".join(strips)


def packed(value, bits):
    """Return a row of one value with so many bits."""
    return np.packbits([int(bit) for bit in f"{value:0{bits}b}" * SIDE]).tobytes()


def words(values, order):
    """Return a row of pixels with these samples of 16 bits."""
    return struct.pack(f"{order}{len(values)}H", *values) * SIDE


def grey(value):
    return (value,) * 3


def over_white(colour, alpha):
    return tuple(round(value * alpha / 255 + 255 - alpha) for value in colour)


def from_cmyk(c, m, y, k):
    return tuple(round((255 - ink) * (255 - k) / 255) for ink in (c, m, y))


def from_ycbcr(y, cb, cr):
    rgb = (y + 1.402 * (cr - 128), y - 0.344136 * (cb - 128) - 0.714136 * (cr - 128), y + 1.772 * (cb - 128))
    return tuple(round(min(max(value, 0), 255)) for value in rgb)


def from_lab(lightness, a, b):
    """Return the sRGB colour of CIE L* (0 to 100), a* and b* with white point D50."""
    fy = (lightness + 16) / 116
    xyz = [
        white * (t**3 if t > 6 / 29 else 3 * (6 / 29) ** 2 * (t - 4 / 29))
        for white, t in zip((0.96422, 1.0, 0.82521), (fy + a / 500, fy, fy - b / 200), strict=True)
    ]
    matrix = np.array(
        [  # from D50 to linear sRGB, with Bradford's adaptation
            [3.1338561, -1.6168667, -0.4906146],
            [-0.9787684, 1.9161415, 0.0334540],
            [0.0719453, -0.2289914, 1.4052427],
        ]
    )
    linear = (matrix @ xyz).clip(0, 1)
    return tuple(
        np.round(255 * np.where(linear > 0.0031308, 1.055 * linear ** (1 / 2.4) - 0.055, 12.92 * linear))
    )


PALETTE = [(10, 20, 30), (200, 100, 50)]
TIFF_PALETTE = [
    257 * (dict(enumerate(PALETTE)).get(i, (0, 0, 0))[band]) for band in range(3) for i in range(256)
]


def png_files():
    """Yield name, content and the expected colour of PNGs."""
    for bits in (1, 2, 4, 8):
        most = 2**bits - 1
        for value in {0, 1, most // 2, most}:
            colour = grey(255 * value // most)
            yield f"grey {bits}, {value}", png(bits, 0, packed(value, bits)), colour
            for key in {value, most - value}:
                shown = grey(255) if key == value else colour
                trns = (b"tRNS", struct.pack(">H", key))
                yield (
                    f"grey {bits}, {value}, {key} is transparent",
                    png(bits, 0, packed(value, bits), trns),
                    shown,
                )
        for value in (0, 1):
            plte = (b"PLTE", bytes(PALETTE[0] + PALETTE[1]))
            yield f"palette {bits}, {value}", png(bits, 3, packed(value, bits), plte), PALETTE[value]
            for alpha in (0, 100, 255):
                trns = (b"tRNS", bytes([255, alpha]))
                shown = over_white(PALETTE[value], alpha if value else 255)
                content = png(bits, 3, packed(value, bits), plte, trns)
                yield f"palette {bits}, {value}, alpha {alpha}", content, shown
    for value in (0, 0x00FF, 0x8040, 0xFFFF):
        yield f"grey 16, {value}", png(16, 0, words([value], ">")), grey(value >> 8)
        for key in {value, value ^ 1}:
            shown = grey(255 if key == value else value >> 8)
            trns = (b"tRNS", struct.pack(">H", key))
            yield f"grey 16, {value}, {key} is transparent", png(16, 0, words([value], ">"), trns), shown
        for alpha in (0, 0x8040, 0xFFFF):
            shown = over_white(grey(value >> 8), alpha >> 8)
            yield f"grey 16, {value}, alpha {alpha}", png(16, 4, words([value, alpha], ">")), shown
    for colour in COLOURS:
        deep = [257 * value for value in colour]
        yield f"rgb 8, {colour}", png(8, 2, bytes(colour) * SIDE), colour
        yield f"rgb 16, {colour}", png(16, 2, words([value << 8 | 0x5A for value in colour], ">")), colour
        trns = (b"tRNS", struct.pack(">3H", *colour))
        yield f"rgb 8, {colour} is transparent", png(8, 2, bytes(colour) * SIDE, trns), (255, 255, 255)
        for alpha in (0, 100, 255):
            shown = over_white(colour, alpha)
            yield f"rgba 8, {colour}, {alpha}", png(8, 6, bytes([*colour, alpha]) * SIDE), shown
            yield f"rgba 16, {colour}, {alpha}", png(16, 6, words([*deep, 257 * alpha], ">")), shown


def tiff_files():
    for order, compress in itertools.product("<>", (False, True)):
        name = f"{'little' if order == '<' else 'big'} endian{', compressed' if compress else ''}"
        options = {"order": order, "compress": compress}
        may_be_refused = OR_REFUSED if order == ">" else ""
        for bits, white in itertools.product((1, 2, 4, 8), (0, 1)):
            most = 2**bits - 1
            for value in {0, 1, most // 2, most}:
                shown = grey(255 * (value if white else most - value) // most)
                content = tiff([bits], packed(value, bits), photometric=white, **options)
                yield f"{name}, grey {bits}, {value}, {white}", content, shown
        for value in (0, 0x00FF, 0x8040, 0xFFFF):
            yield f"{name}, grey 16, {value}", tiff([16], words([value], order), **options), grey(value >> 8)
            content = tiff([16], words([value], order), photometric=0, **options)
            yield f"{name}, grey 16 from white, {value}{may_be_refused}", content, grey(255 - (value >> 8))
        for value in (0, 0x0F0, 0xABC, 0xFFF):
            content = tiff([12], packed(value, 12), **options)
            yield f"{name}, grey 12, {value}{may_be_refused}", content, grey(value >> 4)
        for colour, planes in itertools.product(COLOURS, (1, 2)):
            deep = words([value << 8 | 0x5A for value in colour], order)
            rgb = {"photometric": 2, "planes": planes, **options}
            yield f"{name}, rgb 8, {colour}, {planes}", tiff([8] * 3, bytes(colour) * SIDE, **rgb), colour
            may_be_refused = OR_REFUSED if planes == 2 else ""
            yield f"{name}, rgb 16, {colour}, {planes}{may_be_refused}", tiff([16] * 3, deep, **rgb), colour
        for colour in COLOURS[2:]:
            rgb = {"photometric": 2, **options}
            for alpha, extra in itertools.product((0, 100), (0, 1, 2)):
                premultiplied = (
                    [round(value * alpha / 255) for value in colour] if extra == 1 else list(colour)
                )
                shown = over_white(colour, alpha) if extra else colour
                row = bytes([*premultiplied, alpha]) * SIDE
                yield (
                    f"{name}, rgba 8, {colour}, {alpha}, {extra}",
                    tiff([8] * 4, row, t338=extra, **rgb),
                    shown,
                )
                row = words([257 * value for value in [*premultiplied, alpha]], order)
                yield (
                    f"{name}, rgba 16, {colour}, {alpha}, {extra}",
                    tiff([16] * 4, row, t338=extra, **rgb),
                    shown,
                )
            inks = [255 - value for value in colour] + [40]
            cmyk = {"photometric": 5, **options}
            yield f"{name}, cmyk 8, {inks}", tiff([8] * 4, bytes(inks) * SIDE, **cmyk), from_cmyk(*inks)
            row = words([257 * ink for ink in inks], order)
            yield f"{name}, cmyk 16, {inks}", tiff([16] * 4, row, **cmyk), from_cmyk(*inks)
            content = tiff([8] * 3, bytes(colour) * SIDE, photometric=6, t530=[1, 1], **options)
            yield f"{name}, ycbcr, {colour}", content, from_ycbcr(*colour)
        for value, alpha, extra in itertools.product((0, 77), (0, 100), (0, 1, 2)):
            stored = round(value * alpha / 255) if extra == 1 else value
            shown = over_white(grey(value), alpha) if extra else grey(value)
            content = tiff([8, 8], bytes([stored, alpha]) * SIDE, t338=extra, **options)
            yield f"{name}, grey and alpha, {value}, {alpha}, {extra}", content, shown
        for value in (0, 1):
            for bits in (1, 2, 4, 8):
                colours = [TIFF_PALETTE[band * 256 + i] for band in range(3) for i in range(2**bits)]
                content = tiff([bits], packed(value, bits), photometric=3, t320=colours, **options)
                yield f"{name}, palette {bits}, {value}", content, PALETTE[value]
            for alpha in (0, 100, 255):
                content = tiff(
                    [8, 8], bytes([value, alpha]) * SIDE, photometric=3, t320=TIFF_PALETTE, t338=2, **options
                )
                yield (
                    f"{name}, palette and alpha, {value}, {alpha}",
                    content,
                    over_white(PALETTE[value], alpha),
                )
        for lightness, a, b in ((0, 0, 0), (100, 0, 0), (50, 0, 0), (60, 20, 20), (60, -10, -20)):
            row = struct.pack("Bbb", round(2.55 * lightness), a, b) * SIDE
            yield (
                f"{name}, lab {lightness}, {a}, {b}",
                tiff([8] * 3, row, photometric=8, **options),
                from_lab(lightness, a, b),
            )
        for bits, form in ((8, 2), (16, 2), (32, 1), (32, 2), (32, 3), (64, 3)):
            for value in (0, 1, 64):
                code = {(8, 2): "b", (16, 2): "h", (32, 1): "I", (32, 2): "i", (32, 3): "f", (64, 3): "d"}[
                    bits, form
                ]
                row = struct.pack(f"{order}{SIDE}{code}", *[value / 64 if form == 3 else value] * SIDE)
                yield f"{name}, {bits} bits of {code}, {value}", tiff([bits], row, t339=form, **options), None


def pnm_files():
    def file(magic, most, data):
        return f"{magic}\n{SIDE} {SIDE}\n{most}\n".encode() + data * SIDE * SIDE

    for most in (1, 100, 255, 256, 1000, 4095, 65535):
        code = ">H" if most > 255 else "B"
        for value in {0, 1, most // 2, most}:
            shown = grey(255 * value / most)
            yield f"P5 {most}, {value}", file("P5", most, struct.pack(code, value)), shown
            yield f"P2 {most}, {value}", file("P2", most, f"{value} ".encode()), shown
            other = most - value
            colour = tuple(255 * channel / most for channel in (value, other, value))
            data = b"".join(struct.pack(code, channel) for channel in (value, other, value))
            yield f"P6 {most}, {value}", file("P6", most, data), colour
            yield f"P3 {most}, {value}", file("P3", most, f"{value} {other} {value} ".encode()), colour
    for value in (0, 1):
        yield (
            f"P4 {value}",
            f"P4 {SIDE} {SIDE}\n".encode() + bytes([255 * value]) * SIDE,
            grey(255 - 255 * value),
        )
    for order in "<>":
        scale = "-1.0" if order == "<" else "1.0"
        content = f"Pf\n{SIDE} {SIDE}\n{scale}\n".encode() + struct.pack(order + "f", 0.5) * SIDE * SIDE
        yield f"Pf {scale}", content, None


@pytest.mark.parametrize("files", [png_files, tiff_files, pnm_files])
def test_every_layout_is_read_right_or_refused(tmp_path, files):
    wrong = []
    file = tmp_path / "0"
    for name, content, expected in files():
        file.write_bytes(content)
        try:
            pixels = decode(file, SIDE)
        except UnreadableError as error:
            if expected is not None and OR_REFUSED not in name and not OLD_PILLOW:
                wrong.append((name, expected, error.reason))
        else:
            if expected is None or np.abs(pixels - np.array(expected)).max() > 2.5:
                wrong.append((name, expected, pixels[0, 0].tolist()))
    assert not wrong


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("compression", ["raw", "tiff_lzw"])
def test_rotated_tiff_is_upright(tmp_path, orientation, compression):
    """Pillow rotates a TIFF itself when its pixels are loaded."""
    file = tmp_path / "0.tif"
    pixels = np.random.default_rng(0).integers(0, 256, (16, 32, 3), np.uint8).repeat(4, 0).repeat(4, 1)
    Image.fromarray(pixels).save(file, compression=compression, tiffinfo={274: orientation})
    exif = Image.Exif()
    exif[274] = orientation
    Image.fromarray(pixels).save(tmp_path / "0.png", exif=exif)
    for box in (None, (8, 16, 40, 60)):
        difference = decode(file, 32, box).astype(int) - decode(tmp_path / "0.png", 32, box)
        assert np.abs(difference).max() <= 10  # noise, resized along another axis first
    assert upright_sizes([file], workers=1).tolist() == [[64, 128] if orientation >= 5 else [128, 64]]
