"""``data check`` reports bad data, and ``train`` reports it before it creates a run, with and without the cache."""

import io
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
import zlib
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from test_benchmarks import LAYOUTS, cell, edit, records

from divconq.cli import main
from divconq.data import InMemory, hold_out, open_dataset, subset
from divconq.data.images import decoding
from divconq.data.images.decoding import decode
from divconq.data.images.files import ImageFiles, check_readable
from divconq.data.sources.registry import READERS

TINY = ["--image-size", "16", "--resize", "20", "--backbone", "small", "--no-pretrained", "--dim", "8"]
TINY += ["--batch", "4", "--epochs", "1", "--k-max", "1", "--ks", "1", "--workers", "2", "--device", "cpu"]

SPLITS = {"train": ("ant", "bee"), "test": ("cat", "dog")}


def noise(seed, mode="RGB", width=40, height=24):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels).convert(mode)


def encoded(mode="RGB", **options):
    """Return the bytes of an image file."""
    stream = io.BytesIO()
    noise(99, mode).save(stream, **options)
    return stream.getvalue()


@pytest.fixture(scope="module")
def fine(tmp_path_factory):
    """Return a folder with train/ and test/, and a table of the same images."""
    root = tmp_path_factory.mktemp("fine") / "photos"
    lines = ["path,label,split,x1,y1,x2,y2"]
    for split, names in SPLITS.items():
        for name in names:
            (root / split / name).mkdir(parents=True)
            for i in range(3):
                path = f"{split}/{name}/{i}.jpg"
                noise(len(lines)).save(root / path)
                lines.append(f"{path},{name},{split},{i},2,30,20")
    (root / "list.csv").write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture
def photos(fine, tmp_path):
    return shutil.copytree(fine, tmp_path / "photos")


def three_ways(data, out, *flags):
    train = ["train", "--data", data, "--out", out, *TINY, *flags]
    commands = [["data", "check", data, *flags], train, [*train, "--no-cache"]]
    return [[str(word) for word in command] for command in commands]


def assert_refused(capsys, out, data, says, *flags):
    """Check that each of the three commands prints ``says`` and creates no run folder."""
    for command in three_ways(data, out, *flags):
        with pytest.raises(SystemExit) as stop:
            main(command)
        printed = "".join(capsys.readouterr())
        sentences = re.findall(r"^(?:problem|divconq: error): (.*)", printed, re.MULTILINE)
        assert any(re.search(says, sentence) for sentence in sentences), printed
        assert stop.value.code in ((1, 2) if command[0] == "data" else (2,))
        assert not out.exists()


def test_intact_data_is_accepted(photos, tmp_path, capsys):
    for data in (photos, photos / "list.csv"):
        check, *train = three_ways(data, tmp_path / f"run-{data.stem}")
        main(check)
        assert "no problems" in capsys.readouterr().out
        for number, command in enumerate(train):
            main([word.replace("run-", f"{number}-run-") for word in command])
            assert "last (epoch 1)" in capsys.readouterr().out


# Files


def png(width, height, rows=b""):
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    heading = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + heading + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def cut(keep, mode="RGB", **options):
    content = encoded(mode, **options)
    return content[: int(len(content) * keep)]


def overwritten(content, at, new):
    assert content[at : at + len(new)] != new
    return content[:at] + new + content[at + len(new) :]


JPEG, PNG = encoded(format="JPEG"), encoded(format="PNG")
SIZE = JPEG.index(b"\xff\xc0") + 5  # where a JPEG says its height, then its width
SCAN = JPEG.index(b"\xff\xda")  # where its pixels begin

CONTENTS = {
    "zero bytes": ("odd.jpg", b""),
    "text": ("odd.jpg", b"a note\n"),
    "web page": ("odd.jpg", b"<!DOCTYPE html><html><body>404 Not Found</body></html>"),
    "pointer to large file": (
        "odd.jpg",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n",
    ),
    "zip": ("odd.png", b"PK\x03\x04" + bytes(100)),
    "zeros": ("odd.jpg", bytes(3000)),
    "heic": ("odd.jpg", b"\0\0\0\x18ftypheic" + bytes(40)),
    "jpeg cut in its heading": ("odd.jpg", JPEG[: SIZE + 1]),
    "jpeg cut in its data": ("odd.jpg", cut(0.8, format="JPEG")),
    "jpeg without its last bytes": ("odd.jpg", JPEG[:-3]),
    "progressive jpeg cut": ("odd.jpg", cut(0.8, format="JPEG", progressive=True)),
    "cmyk jpeg cut": ("odd.jpg", cut(0.8, "CMYK", format="JPEG")),
    "grey jpeg cut": ("odd.jpg", cut(0.8, "L", format="JPEG")),
    "jpeg without data": ("odd.jpg", JPEG[:SCAN] + b"\xff\xd9"),
    "jpeg without tables": ("odd.jpg", JPEG.replace(b"\xff\xdb", b"\xff\xfe")),
    "jpeg of no width": ("odd.jpg", overwritten(JPEG, SIZE + 2, b"\0\0")),
    "png cut": ("odd.png", cut(0.5, format="PNG")),
    "png with a damaged stream": ("odd.png", overwritten(PNG, 200, b"\0" * 20)),
    "png with a damaged heading": ("odd.png", overwritten(PNG, 18, b"\7\7")),
    "png without data": ("odd.png", PNG[:33] + PNG[-12:]),
    "png of no width": ("odd.png", png(0, 5)),
    "png larger than its data": ("odd.png", png(3000, 3000, bytes(1000))),
    "webp cut": ("odd.webp", cut(0.5, format="WEBP")),
    "lossless webp cut": ("odd.webp", cut(0.5, format="WEBP", lossless=True)),
    "gif cut": ("odd.gif", cut(0.8, "P", format="GIF")),
    "tiff cut": ("odd.tif", cut(0.5, format="TIFF")),
    "bmp cut": ("odd.bmp", cut(0.5, format="BMP")),
    "ppm cut": ("odd.ppm", cut(0.5, format="PPM")),
}


@pytest.mark.parametrize("kind", CONTENTS)
def test_broken_file(photos, tmp_path, capsys, kind):
    name, content = CONTENTS[kind]
    (photos / "test" / "dog" / name).write_bytes(content)
    assert_refused(capsys, tmp_path / "run", photos, rf"test/dog/{name}")


SIZES = {
    "bomb": (png(50_000, 50_000, bytes(1000)), "more than 178,956,970 pixels"),
    "line": (
        png(100_000, 1, b"\0" + bytes(300_000)),
        "100,000 x 1 pixels, more than 1,000 times as long as wide",
    ),
    "column": (png(2, 2001, bytes(2001 * 7)), "2 x 2,001 pixels, more than 1,000 times as long as wide"),
}


@pytest.mark.parametrize("kind", SIZES)
def test_absurd_size(photos, tmp_path, capsys, kind):
    content, reason = SIZES[kind]
    (photos / "test" / "dog" / "odd.png").write_bytes(content)
    either = (
        rf"{reason}\); remove|^images that are too large, or far longer than wide: 1 \(test/dog/odd.png\)"
    )
    assert_refused(capsys, tmp_path / "run", photos, either)


@pytest.mark.parametrize(("width", "height"), [(2000, 2), (2, 2000), (1, 1)])
def test_unusual_size_is_accepted(tmp_path, width, height):
    file = tmp_path / "1.png"
    file.write_bytes(png(width, height, bytes(height * (3 * width + 1))))
    assert decode(file, 8).shape == (8, 8, 3)


ONE_LARGE = """
import sys, resource
from pathlib import Path
from divconq.data.images.decoding import open_image
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
for name in sys.argv[1:]:
    try:
        with open_image(Path(name)) as image:
            print(image.size)
    except ValueError as error:
        print(error)
"""


def test_only_our_pixel_limit_applies(tmp_path):
    """Pillow warns at half that size."""
    for name, width in (("fine.png", 13_000), ("bomb.png", 14_000), ("large bomb.png", 2**31 - 1)):
        (tmp_path / name).write_bytes(png(width, 13_000))
    command = [sys.executable, "-W", "error", "-c", ONE_LARGE, "fine.png", "bomb.png", "large bomb.png"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    fine, *bombs = done.stdout.splitlines()
    assert fine == "(13000, 13000)"
    assert [bomb.split(";")[0] for bomb in bombs] == [
        "bomb.png cannot be decoded (more than 178,956,970 pixels)",
        "large bomb.png cannot be decoded (more than 178,956,970 pixels)",
    ]
    assert done.stderr == ""


def test_the_limit_does_not_depend_on_pillow(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    (tmp_path / "bomb.png").write_bytes(png(14_000, 13_000))
    with pytest.raises(ValueError, match="14,000 x 13,000 pixels, more than 178,956,970"):
        decode(tmp_path / "bomb.png", 8)


def test_only_known_formats_are_opened(photos, tmp_path, capsys, monkeypatch):
    """Opening an EPS file would start an external program."""
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_: pytest.fail("a program was started"))
    for number, format in enumerate(("EPS", "TGA", "ICO", "PCX", "JPEG2000")):
        file = photos / "test" / "dog" / f"odd{number}.jpg"
        file.write_bytes(encoded(format=format))
        assert_refused(capsys, tmp_path / "run", photos, rf"odd{number}.jpg( \(not an image of a known)?")
        file.unlink()
    for format in decoding.FORMATS:
        (tmp_path / "1.jpg").write_bytes(encoded("P" if format == "GIF" else "RGB", format=format))
        assert decode(tmp_path / "1.jpg", 8).shape == (8, 8, 3)


def test_wrong_chunk_checksum_is_ignored(tmp_path):
    """The pixel data has its own checksum at its end, which must be right."""
    fine, rows = tmp_path / "fine.png", noise(0, width=9, height=9).tobytes()
    rows = b"".join(b"\0" + rows[27 * i : 27 * i + 27] for i in range(9))
    fine.write_bytes(png(9, 9, rows))
    content = bytearray(fine.read_bytes())
    content[-13] ^= 1  # the last byte before IEND
    (tmp_path / "chunk.png").write_bytes(content)
    assert np.array_equal(decode(tmp_path / "chunk.png", 8), decode(fine, 8))
    content[-17] ^= 1  # the last byte of the stream
    (tmp_path / "stream.png").write_bytes(content)
    with pytest.raises(ValueError, match="broken data stream"):
        decode(tmp_path / "stream.png", 8)


@pytest.mark.parametrize("target", ["nowhere.jpg", "odd.jpg"])
def test_broken_link_is_an_error(photos, tmp_path, capsys, target):
    (photos / "train" / "ant" / "odd.jpg").symlink_to(target)
    assert_refused(capsys, tmp_path / "run", photos, "train/ant/odd.jpg")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_without_read_permission_is_an_error(photos, tmp_path, capsys):
    (photos / "test" / "dog" / "1.jpg").chmod(0)
    assert_refused(capsys, tmp_path / "run", photos, "test/dog/1.jpg")


def test_folder_with_image_suffix_is_a_folder(photos):
    (photos / "train" / "ant" / "odd.jpg").mkdir()
    assert len(open_dataset(str(photos)).train) == 6


TRUNCATED = cut(0.8, format="JPEG")


@pytest.mark.parametrize("split", ["train", "query", "gallery"])
def test_broken_file_in_any_split(photos, tmp_path, capsys, split):
    shutil.copytree(photos / "test", photos / "query")
    (photos / "test").rename(photos / "gallery")
    name = "ant" if split == "train" else "dog"
    (photos / split / name / "odd.jpg").write_bytes(TRUNCATED)
    assert_refused(capsys, tmp_path / "run", photos, f"{split}/{name}/odd.jpg")


# Files that are read to find broken ones


def test_each_file_is_read_once_even_if_held_out(fine, monkeypatch):
    """Files of held-out and dropped classes are read too, as with the cache."""
    read = []
    monkeypatch.setattr("divconq.data.images.files.decode", lambda file, size: read.append(file))
    data = open_dataset(str(fine))
    ants, bees = (subset(data.train, data.train.labels == label) for label in (0, 1))
    one = subset(bees, torch.tensor([False, True, False]))
    check_readable(images.store for images in (ants, one, data.test, data.train))
    assert sorted(read) == sorted(fine.rglob("*.jpg"))
    check_readable([InMemory(torch.zeros(2, 8, 8, 3, dtype=torch.uint8))])
    assert len(read) == 12


@pytest.mark.parametrize("place", ["held out", "left out"])
def test_broken_file_of_classes_that_are_not_trained_on(photos, tmp_path, capsys, place):
    for name in ("cow", "elk"):
        shutil.copytree(photos / "train" / "ant", photos / "train" / name)
    (held,) = hold_out(open_dataset(str(photos)).train, 1, seed=0)[1].names
    file = photos / "train" / (held if place == "held out" else "alone") / "odd.jpg"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(TRUNCATED)
    for command in three_ways(photos, tmp_path / "run")[1:]:
        with pytest.raises(SystemExit):
            main([*command, "--val-classes", "1", "--singletons", "drop"])
        assert f"{file.parent.name}/odd.jpg" in capsys.readouterr().err
        assert not (tmp_path / "run").exists()


def test_error_lists_first_three_unreadable_files_and_count(photos):
    for i in range(5):
        (photos / "train" / "bee" / f"odd{i}.jpg").write_bytes(TRUNCATED)
    data = open_dataset(str(photos))
    names = ", ".join(f".*bee/odd{i}.jpg \\(.*truncated.*\\)" for i in range(3))
    with pytest.raises(
        ValueError, match=f"got 5 of 17 that are not: {names} and 2 more; remove them or save"
    ):
        check_readable([data.train.store, data.test.store])


FORMATS = {
    "jpeg": {"format": "JPEG"},
    "jpeg with restarts": {"format": "JPEG", "restart_marker_rows": 1},
    "progressive jpeg": {"format": "JPEG", "progressive": True},
    "png": {"format": "PNG"},
    "webp": {"format": "WEBP"},
    "lossless webp": {"format": "WEBP", "lossless": True},
    "gif": {"format": "GIF", "mode": "P"},
    "tiff": {"format": "TIFF"},
    "compressed tiff": {"format": "TIFF", "compression": "tiff_lzw"},
    "bmp": {"format": "BMP"},
}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_truncated_file_is_found_if_full_decoding_fails(tmp_path, kind):
    """Compare with decoding at full size, of the whole image and of a box."""
    mode = FORMATS[kind].get("mode", "RGB")
    stream = io.BytesIO()
    options = {name: value for name, value in FORMATS[kind].items() if name != "mode"}
    noise(0, width=160, height=96).convert(mode).save(stream, **options)
    content, file = stream.getvalue(), tmp_path / "0.img"
    missed = 0
    for missing in [*range(8), *range(8, len(content), len(content) // 25)]:
        file.write_bytes(content[: len(content) - missing])
        decodes = [readable(decode, file, 160), readable(decode, file, 160, (3, 5, 9, 20))]
        found = not readable(check_readable, [ImageFiles((file,), torch.ones(1), size=160, workers=1)])
        assert decodes == [not found] * 2, f"{missing} bytes less"
        missed += not found
    assert 1 <= missed <= 10, "the whole file, and those without only the mark of the end"


def readable(function, *arguments):
    try:
        function(*arguments)
    except ValueError:
        return False
    return True


# Folders


def only(root, *kept):
    for split in SPLITS:
        if split not in kept:
            shutil.rmtree(root / split)


def loose(root):
    for file in sorted(root.glob("*/*/*.jpg")):
        file.rename(root / f"{file.parent.name}-{file.name}")
    only(root)


def class_folders(root):
    for folder in sorted(root.glob("*/*")):
        folder.rename(root / folder.name)
    only(root)


def fewer_classes(root):
    class_folders(root)
    shutil.rmtree(root / "dog")


def loose_in_train(root):
    for file in sorted((root / "train").rglob("*.jpg")):
        file.rename(root / "train" / f"{file.parent.name}-{file.name}")


def one_image_each(split):
    def change(root):
        for file in (root / split).glob("*/[12].jpg"):
            file.unlink()

    return change


def no_gallery(root):
    (root / "test").rename(root / "query")


FOLDERS = {
    "empty": (only, "photos must have one folder per class with its images, got no image"),
    "images without class folders": (loose, "photos must have one folder per class .*got 12 images directly"),
    "three classes": (fewer_classes, "photos must have at least four class folders .*got 3"),
    "train without test": (
        lambda root: only(root, "train"),
        r"photos must have train/ and test/.*only train/",
    ),
    "query without gallery": (no_gallery, "query/ and gallery/, got only train/, query/"),
    "train without class folders": (loose_in_train, "photos/train must have one folder per class"),
    "train of one class": (
        lambda root: shutil.rmtree(root / "train" / "ant"),
        "train must have at least two",
    ),
    "empty test": (
        lambda root: [shutil.rmtree(folder) for folder in root.glob("test/*")],
        "photos/test must have",
    ),
    "training classes of one image": (
        one_image_each("train"),
        "two classes with two images|classes have a single image .*'ant'",
    ),
    "test classes of one image": (
        one_image_each("test"),
        "no (query has an.* of its class to find|test image has a positive)",
    ),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_broken_folder(photos, tmp_path, capsys, kind):
    change, says = FOLDERS[kind]
    (photos / "list.csv").unlink()
    change(photos)
    assert_refused(capsys, tmp_path / "run", photos, says)


# Tables


def line(number, old, new):
    """Change one line of the table. Lines are numbered from 1."""

    def change(text):
        lines = text.split("\n")
        assert old in lines[number - 1]
        lines[number - 1] = lines[number - 1].replace(old, new)
        return "\n".join(lines)

    return change


def every(old, new):
    return lambda text: text.replace(old, new)


ROW_3 = "train/ant/2.jpg,ant,train,2,2,30,20"

TABLES = {
    "nothing in it": (lambda text: "", "list.csv must have the columns path, label, got none"),
    "heading only": (lambda text: text.split("\n")[0], "list.csv must have a row for each image, got none"),
    "no heading": (lambda text: text.split("\n", 1)[1], "list.csv must have the columns path, label, got"),
    "missing column": (line(1, "label", "class"), "list.csv must have the columns .* add label"),
    "half a box": (line(1, "y1", "top"), "list.csv must have the columns .* add y1"),
    "column twice": (
        line(1, "x1,y1,x2,y2", "label,a,b,c"),
        "column of .*list.csv .* got label more than once",
    ),
    "semicolons": (every(",", ";"), "list.csv must have the columns path, label, got path;label"),
    "a value less": (line(4, ",20", ""), "line 4 of .*list.csv must have 7 values"),
    "a value more": (line(4, ",20", ",20,1"), "line 4 of .*list.csv must have 7 values"),
    "open quote": (
        line(4, "train/ant/2.jpg", '"train/ant/2.jpg'),
        "line 4 of .*list.csv .*close every quote",
    ),
    "open quote at the end": (line(13, ",20", ',"20'), "line 13 of .*list.csv .*close every quote"),
    "no label": (line(4, ",ant,", ",,"), "list.csv must have a label, got 1 without: row 3"),
    "no path": (line(4, "train/ant/2.jpg", " "), "list.csv must have a path, got 1 without: row 3"),
    "no split": (line(4, ",train,", ",,"), "list.csv must have a split, got 1 without: row 3"),
    "missing file": (line(4, "2.jpg", "7.jpg"), "path of .*list.csv .*that are not: .*train/ant/7.jpg"),
    "folder": (line(4, "train/ant/2.jpg", "train/ant"), "path of .*list.csv .*that are not: .*train/ant;"),
    "unknown split": (line(4, ",train,", ",trian,"), "split of .*list.csv .*got 'trian' in row 3"),
    "only train": (
        every(",test,", ",train,"),
        "split of .*list.csv must have train and test.* got only train",
    ),
    "no gallery": (every(",test,", ",query,"), "split of .*list.csv must have .* got only train, query"),
    "one training class": (every(",bee,", ",ant,"), "list.csv must have at least two classes to train on"),
    "box beyond the image": (line(4, "30,20", "41,20"), r"box .*2.jpg in row 3 \(2, 2, 41, 20 in 40 x 24\)"),
    "box before the image": (
        line(4, "2,2,30", "-1,2,30"),
        r"box .*train/ant/2.jpg in row 3 \(-1, 2, 30, 20 in",
    ),
    "empty box": (line(4, "30,20", "2,20"), r"box .*train/ant/2.jpg in row 3 \(2, 2, 2, 20 in"),
    "box below a pixel": (line(4, "30,20", "2.9,20"), r"box .*2.jpg in row 3 \(2, 2, 2.9, 20 in"),
    "box of words": (line(4, "30,20", "30,low"), "x1, y1, x2 and y2 of .*list.csv .* got 'low' in row 3"),
    "box that is not a number": (line(4, "30,20", "30,nan"), "y2 of .*list.csv .* got 'nan' in row 3"),
    "box without end": (line(4, "30,20", "inf,20"), "y2 of .*list.csv .* got 'inf' in row 3"),
    "path that leads out": (
        line(4, "train/ant/2.jpg", "../photos/train/ant/2.jpg"),
        "list.csv must stay below its folder, got 1 that leave it: ../photos/train/ant/2.jpg in row 3",
    ),
    "two labels": (
        lambda text: text + ROW_3.replace(",ant,", ",bee,"),
        r"list.csv must have one label, .*: train/ant/2.jpg in rows 3 and 13 \(ant, bee\)",
    ),
    "train and test": (
        lambda text: text + ROW_3.replace(",train,", ",test,"),
        "list.csv may be in train and .*: train/ant/2.jpg in rows 3 and 13",
    ),
    "the same path in other words": (
        lambda text: text + ROW_3.replace("train/ant/2.jpg,ant,train", "./train//ant/2.jpg,ant,test"),
        "may be in train and .*: train/ant/2.jpg = ./train//ant/2.jpg in rows 3 and 13",
    ),
}


@pytest.mark.parametrize("kind", TABLES)
def test_broken_table(photos, tmp_path, capsys, kind):
    change, says = TABLES[kind]
    table = photos / "list.csv"
    table.write_text(change(table.read_text()))
    assert_refused(capsys, tmp_path / "run", table, says)


def test_table_in_another_encoding(photos, tmp_path, capsys):
    table = photos / "list.csv"
    table.write_bytes(table.read_text().replace(",ant,", ",Ämse,").encode("latin-1"))
    assert_refused(capsys, tmp_path / "run", table, "list.csv must be a CSV file in UTF-8")


def test_invalid_parquet_is_an_error(photos, tmp_path, capsys):
    pytest.importorskip("pyarrow")
    table = (photos / "list.csv").rename(photos / "list.parquet")
    assert_refused(capsys, tmp_path / "run", table, "list.parquet must be a Parquet file")


def test_truncated_file_of_a_table(photos, tmp_path, capsys):
    (photos / "test" / "dog" / "1.jpg").write_bytes(TRUNCATED)
    assert_refused(capsys, tmp_path / "run", photos / "list.csv", "test/dog/1.jpg")


def test_image_may_be_repeated_and_be_in_query_and_gallery(photos):
    table = photos / "list.csv"
    text = table.read_text().replace(",test,", ",query,")
    again = text.split("\n", 1)[1].replace(",query,", ",gallery,")
    table.write_text(text + again + ROW_3.replace("30,20", "31,20").replace(",ant,", ",bee,"))
    data = open_dataset(str(table))
    assert (len(data.train), len(data.test), len(data.gallery)) == (13, 6, 6)


# Lists of published benchmarks


def without(file):
    return lambda root: (root / file).unlink()


def replaced(file, old, new):
    return lambda root: edit(root / file, old, new)


def appended(file, text):
    return lambda root: (root / file).write_text((root / file).read_text() + text)


def content(file, new):
    return lambda root: (root / file).write_bytes(new)


def matrix(fields, rows):
    def change(root):
        from scipy.io import savemat

        names = cell(["AM General Hummer SUV 2000"])
        savemat(root / "cars_annos.mat", {"annotations": records(fields, rows), "class_names": names})

    return change


EVAL, TRAIN_LIST = "Eval/list_eval_partition.txt", "train_test_split/train_list.txt"
ANI = "images/002.Groove_billed_Ani/a.jpg"

LISTS = {
    "cub list missing": ("cub", without("classes.txt"), "1 of 3 list files are missing: .*classes.txt"),
    "cub line of one word": ("cub", replaced("images.txt", "3 002", "002"), "line 3 of .*images.txt must be"),
    "cub line of words": ("cub", replaced("images.txt", "3 002", "x 002"), "line 3 of .*images.txt must be"),
    "cub list cut": (
        "cub",
        replaced("image_class_labels.txt", "7 4\n", "7"),
        "line 7 of .*class_labels.txt must",
    ),
    "cub class of no image": (
        "cub",
        appended("image_class_labels.txt", "9 1\n"),
        "images.txt .* 1 of them: 9",
    ),
    "cub image of no class": (
        "cub",
        replaced("image_class_labels.txt", "3 2\n", ""),
        "image_class_labels.txt must have a line .* 1 of them: 3",
    ),
    "cub image twice": ("cub", appended("images.txt", "3 x.jpg\n"), "images.txt must have one line .*: 3;"),
    "cub image of two classes": (
        "cub",
        appended("image_class_labels.txt", "3 1\n"),
        "image_class_labels.txt must have one line .*: 3;",
    ),
    "cub class without name": (
        "cub",
        replaced("classes.txt", "4 0", "5 0"),
        "classes.txt must have a line .*: 4;",
    ),
    "cub list empty": (
        "cub",
        content("images.txt", b""),
        "images.txt must have a line .* 7 of them: 1, 2, 3",
    ),
    "cub images missing": ("cub", without(ANI), f"1 of 7 image files are missing: {ANI}"),
    "cub image truncated": ("cub", content(ANI, TRUNCATED), ANI),
    "cub path that leads out": (
        "cub",
        replaced("images.txt", "3 002", "3 ../002"),
        r"line 3 of .*images.txt must be NUMBER PATH, a path below .* got '3 \.\./002",
    ),
    "cars no matrix": ("cars", content("cars_annos.mat", b"text"), "cars_annos.mat must be a MATLAB file"),
    "cars empty": ("cars", content("cars_annos.mat", b""), "cars_annos.mat must be a MATLAB file"),
    "cars without path": (
        "cars",
        matrix(("class", "fname"), [(1, "a")]),
        "cars_annos.mat .* 'relative_im_path'",
    ),
    "cars without number": (
        "cars",
        matrix(("class", "relative_im_path"), [(1, "a.jpg"), ("x", "b.jpg")]),
        "annotation 2 of .*cars_annos.mat must have a number as class",
    ),
    "cars without class": (
        "cars",
        matrix(("class", "relative_im_path"), [(1, "a.jpg"), ([], "b.jpg")]),
        "annotation 2 of .*cars_annos.mat must have a number as class",
    ),
    "cars wrong count": (
        "cars",
        matrix(("class", "relative_im_path"), [(1, "car_ims/000001.jpg")]),
        "train must have 2 classes, got 1; train must have 3 images, got 1",
    ),
    "cars image missing": ("cars", without("car_ims/000005.jpg"), "1 of 6 .* missing: car_ims/000005.jpg"),
    "sop line of three": (
        "sop",
        replaced("Ebay_train.txt", "3 2 11", "3 2"),
        "line 4 of .*Ebay_train.txt must be",
    ),
    "sop line of words": (
        "sop",
        replaced("Ebay_test.txt", "6 10", "6 x"),
        "line 3 of .*Ebay_test.txt must be",
    ),
    "sop list cut": (
        "sop",
        replaced("Ebay_test.txt", "toaster_final/5_0.JPG", ""),
        "line 4 of .*Ebay_test.txt",
    ),
    "sop wrong count": (
        "sop",
        replaced("Ebay_test.txt", "7 11 11 toaster_final/5_0.JPG\n", ""),
        "test must have 2 classes, got 1; test must have 3 images, got 2",
    ),
    "inshop other count": (
        "inshop",
        replaced(EVAL, "8\n", "9\n"),
        "line 1 of .*partition.txt .* got '9' for 8",
    ),
    "inshop no count": ("inshop", replaced(EVAL, "8\n", "\n"), "line 1 of .*partition.txt .* got '' for 8"),
    "inshop empty": ("inshop", content(EVAL, b""), "line 1 of .*partition.txt .* got '' for 0"),
    "inshop unknown split": (
        "inshop",
        replaced(EVAL, "query", "qurey"),
        "partition.txt .* got 'qurey' for img/",
    ),
    "inshop short line": (
        "inshop",
        replaced(EVAL, "id_00000003 train", "train"),
        "line 10 of .*partition.txt",
    ),
    "inshop odd path": (
        "inshop",
        replaced(EVAL, "img/MEN/Denim/id_00000003/", "img/"),
        "got 'img/01_2_side.jpg'",
    ),
    "vehicleid short line": (
        "vehicleid",
        replaced(TRAIN_LIST, "0000001 9", "0000001"),
        "line 2 of .*train_list",
    ),
    "vehicleid image missing": ("vehicleid", without("image/0000006.jpg"), "are missing: image/0000006.jpg"),
    "vehicleid image empty": ("vehicleid", content("image/0000006.jpg", b""), "image/0000006.jpg"),
    "vehicleid wrong count": (
        "vehicleid",
        replaced(TRAIN_LIST, "0000007 100", "0000007 9"),
        "train must have 2 classes, got 1",
    ),
}


@pytest.mark.parametrize("kind", LISTS)
def test_broken_list(tmp_path, capsys, monkeypatch, kind):
    name, change, says = LISTS[kind]
    make, read, counts, _ = LAYOUTS[name]
    monkeypatch.setitem(READERS, name, partial(read, counts=counts))
    make(tmp_path / "data")
    open_dataset(name, root=tmp_path / "data")
    change(tmp_path / "data")
    assert_refused(capsys, tmp_path / "run", name, says, "--root", tmp_path / "data")


# Hostile files


class Hostile:
    """A pickle that writes a file when it is read."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (type(self.marker).touch, (self.marker,))


def test_hostile_pickle_executes_code_when_loaded(tmp_path):
    pickle.loads(pickle.dumps(Hostile(tmp_path / "marker")))
    assert (tmp_path / "marker").exists()


def hostile(form, marker):
    content, pickled = io.BytesIO(), Hostile(marker)
    if form == "torch":
        torch.save({"weight": pickled}, content)
    elif form == "npy":
        np.save(content, np.array([pickled], dtype=object), allow_pickle=True)
    else:
        pickle.dump(pickled, content)
    return content.getvalue()


forms = pytest.mark.parametrize("form", ["pickle", "torch", "npy"])


@forms
@pytest.mark.parametrize(
    ("file", "data", "says"),
    [
        ("test/dog/odd.jpg", ".", "test/dog/odd.jpg"),
        ("list.csv", "list.csv", "list.csv must be a CSV file"),
        ("list.parquet", "list.parquet", "list.parquet must be a Parquet file"),
        ("cars_annos.mat", "cars", "cars_annos.mat must be a MATLAB file"),
    ],
)
def test_a_hostile_pickle_is_not_executed(photos, tmp_path, capsys, monkeypatch, form, file, data, says):
    monkeypatch.chdir(photos)
    (photos / file).write_bytes(hostile(form, tmp_path / "marker"))
    assert_refused(capsys, tmp_path / "run", data, says, *(["--root", "."] if data == "cars" else []))
    assert not (tmp_path / "marker").exists()


@forms
@pytest.mark.parametrize("name", ["weights.safetensors", "weights.pt", "weights.npy"])
def test_hostile_weights_are_not_executed(photos, tmp_path, capsys, form, name):
    weights = tmp_path / name
    weights.write_bytes(hostile(form, tmp_path / "marker"))
    with pytest.raises(SystemExit) as stop:
        main([*three_ways(photos, tmp_path / "run")[1], "--backbone-weights", str(weights)])
    assert stop.value.code == 2
    assert f"{weights} is not a whole safetensors file" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "marker").exists()
