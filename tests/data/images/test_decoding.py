"""Files that change, are none, or expand to much memory."""

import multiprocessing
import os
import resource
import signal
import socket
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from divconq.data.check.file_kinds import kinds_of_file
from divconq.data.images.decoding import MOST_PIXELS, UnreadableError, decode, open_image, prepare_pillow
from divconq.data.sources.folder import read_folder

linux = pytest.mark.skipif(sys.platform != "linux", reason="forks, and measures memory in kilobytes")


def png(side, bits, colour_type):
    """Return a black PNG with so many bits per pixel."""
    depth = {0: bits, 2: bits // 3, 6: bits // 4}[colour_type]

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, depth, colour_type, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(bytes((1 + side * bits // 8) * side), 1))
        + chunk(b"IEND", b"")
    )


def in_child(work):
    """Return ``work()`` of a forked process."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=lambda: theirs.send(work()))
    child.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        return f"killed by {signal.Signals(-child.exitcode).name}" if not child.join() else None
    finally:
        child.join()


SIDE = 6000


@linux
@pytest.mark.parametrize(
    ("bits", "colour_type", "most"), [(1, 0, 2), (8, 0, 2), (16, 0, 5), (24, 2, 5), (32, 6, 5)]
)
def test_decoding_takes_little_more_memory_than_the_pixels(tmp_path, bits, colour_type, most):
    """``most`` is in bytes per pixel. Copies of the image in RGB would take 4 more each."""
    file = tmp_path / "0.png"
    file.write_bytes(png(SIDE, bits, colour_type))
    prepare_pillow()

    def growth():
        decode(tmp_path / "small.png", 64)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        decode(file, 64)
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024

    (tmp_path / "small.png").write_bytes(png(64, 8, 0))
    assert in_child(growth) < most * SIDE * SIDE


def estimated(file):
    from divconq.data.images.memory import decoding_bytes

    with open_image(file) as image:
        return decoding_bytes(image) / image.width / image.height


def test_memory_is_estimated_from_the_header(tmp_path):
    image = Image.new("RGB", (40, 24))
    for name, options, expected in (
        ("0.png", {}, 4),
        ("0.bmp", {}, 4),
        ("0.jpg", {}, 4),
        ("0.jpg", {"progressive": True}, 10),
        ("0.webp", {}, 16),
        ("0.tif", {}, 7),
        ("0.tif", {"tiffinfo": {274: 6}}, 11),
    ):
        image.save(tmp_path / name, **options)
        assert estimated(tmp_path / name) == expected, (name, options)
    wide = Image.new("RGB", (4000, 3000))
    wide.save(tmp_path / "1.tif", compression="tiff_lzw")
    with Image.open(tmp_path / "1.tif") as opened:
        rows = opened.tag_v2[278]  # of a strip
    assert estimated(tmp_path / "1.tif") == pytest.approx(4 + 3 * rows / 3000)
    assert rows < 3000
    image.convert("1").save(tmp_path / "1.png")
    assert estimated(tmp_path / "1.png") == 1


@pytest.mark.filterwarnings("ignore:Image size")
def test_image_that_takes_too_much_memory_is_refused(tmp_path):
    """Within the limit of pixels, only the header is read."""
    side = 13_000
    assert side * side < MOST_PIXELS
    (tmp_path / "0.pgm").write_bytes(f"P5 {side} {side} 1000\n".encode())
    with pytest.raises(
        UnreadableError, match=r"13,000 x 13,000 pixels, which take 2,366,000,000 bytes to decode"
    ):
        decode(tmp_path / "0.pgm", 8)
    assert kinds_of_file(tmp_path / "0.pgm") == ("odd_size",)


# What is no file, or none any more


def make_pipe(file):
    os.mkfifo(file)


def make_socket(file):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(file))


def link_device(file):
    file.symlink_to("/dev/zero")


@linux
@pytest.mark.parametrize("make", [make_pipe, make_socket, link_device])
def test_pipes_sockets_and_devices_are_refused(tmp_path, monkeypatch, make):
    """Reading them could wait forever."""
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    for name in "abcd":
        Path(name).mkdir()
        Image.new("RGB", (9, 9)).save(f"{name}/0.png")
    make(Path("b/1.png"))
    signal.alarm(20)  # instead of waiting forever
    with pytest.raises(ValueError, match=r"got 1 of 5 that are not: b/1.png \(not a regular file\); remove"):
        read_folder(".", size=8)
    with pytest.raises(UnreadableError, match="not a regular file"):
        decode(Path("b/1.png"), 8)
    assert kinds_of_file(Path("b/1.png")) == ("unreadable",)
    signal.alarm(0)


@linux
@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("name", ["0.pgm", "0.tif", "0.bmp", "0.png", "0.jpg", "0.webp", "0.gif"])
def test_file_that_is_cut_while_it_is_read_kills_no_process(tmp_path, name, loaded):
    """If the file was mapped into memory, the system would kill the process."""
    file = tmp_path / name
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 400), np.uint8)).save(file)

    def cut():
        try:
            with open_image(file) as image:
                if loaded:
                    image.load()
                os.truncate(file, 30)
                return int(np.asarray(image).sum())
        except UnreadableError as error:
            return str(error)

    outcome = in_child(cut)
    assert isinstance(outcome, int) if loaded or name == "0.webp" else f"{name} cannot be decoded" in outcome


@pytest.mark.parametrize("change", [Path.unlink, lambda file: os.truncate(file, 0)])
def test_file_that_vanishes_is_named_when_it_is_loaded(tmp_path, change):
    for name in "abcd":
        (tmp_path / name).mkdir()
        Image.new("RGB", (9, 9)).save(tmp_path / name / "0.png")
    images = read_folder(tmp_path, size=8).train
    change(images.store.files[1])
    with pytest.raises(ValueError, match=rf"{images.paths[1]} cannot be decoded \(.*\); remove it"):
        images.store.load(torch.arange(len(images)))
