import dataclasses
import json
import os
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from divconq.data import open_dataset
from divconq.data.check import check_dataset
from divconq.data.check.file_kinds import kinds_of_file
from divconq.data.check.kinds import DUPLICATE_KINDS, FILE_KINDS, KINDS, LABEL_KINDS
from divconq.data.dataset import Dataset, ImageSet, InMemory

BROKEN = [kind for kind in FILE_KINDS if FILE_KINDS[kind].problem]


def noise(seed, width=40, height=24, channels=3):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8))


def save(path, image=None, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    (image or noise(0)).save(path, **options)
    return path


def photos(root, layout, seed=0):
    """Write a folder of splits and classes, in which all images differ."""
    for split, classes in layout.items():
        for name, count in classes.items():
            for i in range(count):
                seed += 1
                save(root / split / name / f"{i}.png", noise(seed))
    return root


def fine(root):
    return photos(root, {"train": {"ant": 3, "bee": 2}, "test": {"cat": 2, "dog": 4}})


def checked(path):
    return check_dataset(open_dataset(str(path), keep_broken=True, workers=2), workers=2)


def found(report):
    """Return the findings as {kind: count}, without zeros."""
    return {kind: finding.count for kind, finding in report.findings.items() if finding.count}


# One file of each kind


def whole(suffix, **options):
    return lambda file: save(file.with_suffix(suffix), noise(0), **options)


def cut(suffix, keep, **options):
    """Return a writer of the first bytes of an image file."""

    def make(file):
        file = whole(suffix, **options)(file)
        content = file.read_bytes()
        file.write_bytes(content[: int(len(content) * keep)])
        return file

    return make


def holding(suffix, content):
    def make(file):
        file = file.with_suffix(suffix)
        file.write_bytes(content)
        return file

    return make


def damaged(suffix, at):
    """Return a writer of an image file with 40 bytes overwritten."""

    def make(file):
        file = whole(suffix)(file)
        content = bytearray(file.read_bytes())
        content[at : at + 40] = b"\0" * 40
        file.write_bytes(content)
        return file

    return make


def converted(mode, suffix, **options):
    return lambda file: save(file.with_suffix(suffix), noise(0).convert(mode), **options)


def frames(suffix, **options):
    return lambda file: save(
        file.with_suffix(suffix), noise(0), save_all=True, append_images=[noise(1), noise(2)], **options
    )


def turned(orientation, suffix):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return whole(suffix, exif=exif)


def grey_16_bits(suffix):
    pixels = np.random.default_rng(0).integers(0, 65536, (24, 40), np.uint16)
    return lambda file: save(file.with_suffix(suffix), Image.fromarray(pixels))


def grey_levels(kind, low, high):
    pixels = np.linspace(low, high, 24 * 40).reshape(24, 40).astype(kind)
    return lambda file: save(file.with_suffix(".tif"), Image.fromarray(pixels))


def signed_bytes(file):
    return save(file.with_suffix(".tif"), Image.new("L", (40, 24), 200), tiffinfo={339: 2})


def colour_16_bits(file):
    """Write a PNG with 16 bits per channel, which Pillow cannot write."""
    import struct
    import zlib

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = b"".join(b"\0" + bytes(range(6 * 4)) for _ in range(3))
    file = file.with_suffix(".png")
    file.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 3, 16, 2, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
    return file


def with_preview(file):
    """Write a photo with a small preview inside, as phones do."""
    file = file.with_suffix(".jpg")
    noise(0).save(file, "MPO", save_all=True, append_images=[noise(1, 8, 8)])
    return file


def transparent_colour(file):
    return save(file.with_suffix(".png"), noise(0).quantize(16), transparency=3)


FILES = {
    "jpeg": (whole(".jpg"), ()),
    "progressive jpeg": (whole(".jpg", progressive=True), ()),
    "png": (whole(".png"), ()),
    "bmp": (whole(".bmp"), ()),
    "still gif": (whole(".gif"), ()),
    "still webp": (whole(".webp"), ()),
    "grey": (converted("L", ".jpg"), ()),
    "black and white": (converted("1", ".png"), ()),
    "upright in exif": (turned(1, ".jpg"), ()),
    "photo with preview": (with_preview, ()),
    "wrong suffix": (lambda file: whole(".png")(file).rename(file.with_suffix(".jpg")), ()),
    "nothing in it": (holding(".jpg", b""), ("zero_byte",)),
    "half a jpeg": (cut(".jpg", 0.6), ("truncated",)),
    "half a progressive jpeg": (cut(".jpg", 0.6, progressive=True), ("truncated",)),
    "half a png": (cut(".png", 0.5), ("truncated",)),
    "half a gif": (cut(".gif", 0.8), ("truncated",)),
    "half a bmp": (cut(".bmp", 0.5), ("truncated",)),
    "half a webp": (cut(".webp", 0.5), ("unreadable",)),
    "beginning of a jpeg": (holding(".jpg", b"\xff\xd8\xff"), ("unreadable",)),
    "beginning of a png": (holding(".png", b"\x89PNG\r\n\x1a\n"), ("unreadable",)),
    "damaged png": (damaged(".png", 60), ("unreadable",)),
    "text": (holding(".jpg", b"this is a note\n"), ("not_an_image",)),
    "web page": (holding(".jpg", b"<!DOCTYPE html><html><body>404</body></html>"), ("not_an_image",)),
    "zip": (holding(".png", b"PK\x03\x04" + bytes(100)), ("not_an_image",)),
    "zeros": (holding(".jpg", bytes(5000)), ("not_an_image",)),
    "gif of three frames": (frames(".gif"), ("animated",)),
    "png of three frames": (frames(".png"), ("animated",)),
    "webp of three frames": (frames(".webp"), ("animated",)),
    "tiff of three pages": (frames(".tif"), ("animated",)),
    "cmyk jpeg": (converted("CMYK", ".jpg"), ("cmyk",)),
    "cmyk tiff": (converted("CMYK", ".tif"), ("cmyk",)),
    "lab tiff": (
        lambda file: save(file.with_suffix(".tif"), Image.new("LAB", (40, 24), (99, 140, 90))),
        ("lab",),
    ),
    "tiff of floats": (grey_levels(np.float32, 0, 1), ("unknown_range",)),
    "tiff of nan": (grey_levels(np.float32, np.nan, np.nan), ("unknown_range",)),
    "tiff of 32 bits": (grey_levels(np.int32, 0, 1 << 30), ("unknown_range",)),
    "tiff of signed bytes": (signed_bytes, ("unknown_range",)),
    "grey png of 16 bits": (grey_16_bits(".png"), ("sixteen_bit",)),
    "grey tiff of 16 bits": (grey_16_bits(".tif"), ("sixteen_bit",)),
    "colour png of 16 bits": (colour_16_bits, ("sixteen_bit",)),
    "rgba png": (converted("RGBA", ".png"), ("alpha",)),
    "grey and alpha png": (converted("LA", ".png"), ("alpha",)),
    "transparent colour": (transparent_colour, ("alpha",)),
    "turned jpeg": (turned(6, ".jpg"), ("exif_rotated",)),
    "mirrored webp": (turned(2, ".webp"), ("exif_rotated",)),
    "turned png": (turned(8, ".png"), ("exif_rotated",)),
}


@pytest.mark.parametrize("name", FILES)
def test_one_file(tmp_path, name):
    make, kinds = FILES[name]
    assert kinds_of_file(make(tmp_path / "0")) == kinds


@pytest.mark.parametrize("name", [name for name, (_, kinds) in FILES.items() if kinds])
def test_one_file_in_a_folder(tmp_path, name):
    make, (kind,) = FILES[name]
    fine(tmp_path)
    file = make(tmp_path / "test" / "dog" / "odd")
    report = checked(tmp_path)
    assert found(report) == {kind: 1}
    assert report.findings[kind].examples == [file.relative_to(tmp_path).as_posix()]
    (sentence,) = report.problems + report.warnings
    assert sentence.startswith(f"{KINDS[kind].title}: 1 (test/dog/odd")
    assert (sentence in report.problems) == (kind in BROKEN)


def test_one_file_can_have_several_findings(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 3
    file = save(tmp_path / "0.webp", noise(0, channels=4), exif=exif)
    assert kinds_of_file(file) == ("alpha", "exif_rotated")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_without_read_permission_is_unreadable(tmp_path):
    file = save(tmp_path / "0.png")
    file.chmod(0)
    assert kinds_of_file(file) == ("unreadable",)


def test_training_still_refuses_broken_files(tmp_path):
    holding(".jpg", b"no image")(fine(tmp_path) / "train" / "ant" / "odd")
    with pytest.raises(ValueError, match=r"must be readable, got 1 of 12 .*odd\.jpg"):
        open_dataset(str(tmp_path))
    open_dataset(str(tmp_path), keep_broken=True)
    with pytest.raises(ValueError, match="must be readable, got 1 of 12"):
        open_dataset(str(tmp_path))


def test_finding_lists_first_three_and_count(tmp_path):
    fine(tmp_path)
    for i in range(5):
        (tmp_path / "train" / "ant" / f"x{i}.png").touch()
    report = checked(tmp_path)
    assert report.findings["zero_byte"].count == 5
    assert report.findings["zero_byte"].examples == [f"train/ant/x{i}.png" for i in range(3)]
    assert "files of zero bytes: 5 (train/ant/x0.png, " in report.problems[0]
    assert " and 2 more); " in report.problems[0]


# Duplicates


def test_duplicates_equal_bytewise_comparison(tmp_path):
    """Compare with a bytewise comparison of all pairs of files."""
    for seed in range(6):
        root, random = tmp_path / str(seed), np.random.default_rng(seed)
        splits = ("train", "test") if seed % 2 else ("train", "query", "gallery")
        classes = {"train": "ab", "test": "cd", "query": "cd", "gallery": "cd"}
        for split in splits:
            for name in classes[split]:
                for i in range(3):
                    colour = tuple(random.integers(0, 2, 3).tolist())  # all colours take equally many bytes
                    save(root / split / name / f"{i}.bmp", Image.new("RGB", (4, 4), colour))
        files = sorted(root.rglob("*.bmp"))
        where = {file: file.relative_to(root).parts for file in files}
        contents: dict[bytes, list] = {}
        for one, other in combinations(files, 2):
            if one.read_bytes() == other.read_bytes():
                contents.setdefault(one.read_bytes(), []).append((where[one], where[other]))
        within = {(key, a[0]) for key, pairs in contents.items() for a, b in pairs if a[0] == b[0]}
        leaks = {
            key for key, pairs in contents.items() for a, b in pairs if (a[0] == "train") != (b[0] == "train")
        }
        seen = {
            key for key, pairs in contents.items() for a, b in pairs if {a[0], b[0]} == {"query", "gallery"}
        }
        mixed = {key for key, pairs in contents.items() for a, b in pairs if a[1] != b[1]}
        report = checked(root)
        counts = [report.findings[kind].count for kind in DUPLICATE_KINDS if kind in report.findings]
        expected = [len(within), len(leaks), len(seen), 0, len(mixed)]
        assert counts == [
            n for n, kind in zip(expected, DUPLICATE_KINDS, strict=True) if kind in report.findings
        ]
        assert ("duplicates_query_gallery" in report.findings) == ("gallery" in splits)
        assert len(leaks) > 0
        assert any("equal images in train and test" in problem for problem in report.problems)


def copy(root, source, target):
    (root / target).write_bytes((root / source).read_bytes())


def test_equal_images_of_one_class(tmp_path):
    save(fine(tmp_path) / "train" / "ant" / "0.png", noise(0, width=50))  # no other file is as large
    copy(tmp_path, "train/ant/0.png", "train/ant/copy.png")
    report = checked(tmp_path)
    assert found(report) == {"duplicates_within_split": 1}
    assert report.findings["duplicates_within_split"].examples == ["train/ant/0.png = train/ant/copy.png"]
    assert report.problems == []


def test_equal_images_of_two_classes(tmp_path):
    copy(fine(tmp_path), "train/ant/0.png", "train/bee/copy.png")
    report = checked(tmp_path)
    assert found(report) == {"duplicates_within_split": 1, "duplicates_other_label": 1}
    assert report.findings["duplicates_other_label"].examples == [
        "train/ant/0.png (ant) = train/bee/copy.png (bee)"
    ]


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_one_file_with_two_labels(tmp_path, link):
    fine(tmp_path)
    link(tmp_path / "train" / "bee" / "link.png", tmp_path / "train" / "ant" / "0.png")
    report = checked(tmp_path)
    assert found(report) == {"duplicates_within_split": 1, "links_other_label": 1}
    assert report.problems == [
        "files with two labels, by links: 1 (train/ant/0.png (ant) = train/bee/link.png (bee)); "
        "training refuses them; remove one link of each"
    ]


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_one_file_in_train_and_test(tmp_path, link):
    fine(tmp_path)
    (tmp_path / "test" / "ant").mkdir()
    link(tmp_path / "test" / "ant" / "link.png", tmp_path / "train" / "ant" / "0.png")
    (problem,) = checked(tmp_path).problems
    assert problem.startswith("equal images in train and test: 1 (train/ant/0.png = test/ant/link.png)")


def test_images_of_equal_size_that_differ(tmp_path):
    for split, names in (("train", "ab"), ("test", "cd")):
        for name in names:
            for i in range(2):
                save(tmp_path / split / name / f"{i}.bmp", Image.new("RGB", (4, 4), (ord(name), i, 0)))
    assert found(checked(tmp_path)) == {}


def test_broken_files_are_no_duplicates(tmp_path):
    fine(tmp_path)
    (tmp_path / "train" / "ant" / "x.png").touch()
    (tmp_path / "test" / "dog" / "x.png").touch()
    assert found(checked(tmp_path)) == {"zero_byte": 2}


def test_boxes_of_one_file_are_different_images(tmp_path):
    save(tmp_path / "street.png", noise(0))
    copy(tmp_path, "street.png", "copy.png")
    (tmp_path / "empty.png").touch()
    rows = ["street.png,a,train,0", "street.png,a,train,1", "street.png,b,train,2", "street.png,b,train,2"]
    rows += ["street.png,c,test,3", "street.png,c,test,4", "empty.png,c,test,5", "copy.png,c,test,1"]
    lines = [f"{row},0,{int(row[-1]) + 9},20" for row in rows]
    (tmp_path / "boxes.csv").write_text("\n".join(["path,label,split,x1,y1,x2,y2", *lines]) + "\n")
    report = checked(tmp_path / "boxes.csv")
    assert report.files == 3
    assert found(report) == {
        "zero_byte": 1,
        "duplicates_within_split": 1,
        "duplicates_train_test": 1,
        "duplicates_other_label": 1,
    }


# Classes


def test_nothing_to_report(tmp_path):
    report = checked(fine(tmp_path))
    assert report.problems == report.warnings == []
    assert list(report.findings) == [
        kind for kind in KINDS if kind not in ("not_in_gallery", "duplicates_query_gallery")
    ]
    assert report.files == 11
    assert report.to_text().endswith("\n\nno problems")


def test_counts_of_each_split(tmp_path):
    sizes = {"a": 1, "b": 2, "c": 3, "d": 4, "e": 8, "f": 15}
    report = checked(photos(tmp_path, {"train": sizes, "test": {"y": 2, "z": 2}}))
    train, test = report.splits["train"], report.splits["test"]
    assert (train.images, train.classes, train.singletons) == (33, 6, 1)
    assert train.class_sizes == {"1": 1, "2-3": 2, "4-7": 1, "8-15": 2}
    assert (test.images, test.classes, test.singletons) == (4, 2, 0)
    assert test.class_sizes == {"1": 0, "2-3": 2}
    assert found(report) == {"singletons": 1}
    assert report.findings["singletons"].examples == ["a"]


def labelled(train, test, gallery=None):
    def images(names):
        present = sorted({*(test + gallery if gallery and names is not train else names)})
        return ImageSet(
            InMemory(torch.zeros(len(names), 4, 4, 3, dtype=torch.uint8)),
            torch.tensor([present.index(name) for name in names]),
            tuple(present),
            tuple(f"{name}{i}" for i, name in enumerate(names)),
        )

    return Dataset("letters", images(train), images(test), images(gallery) if gallery else None)


def test_images_in_memory_have_labels_only():
    report = check_dataset(labelled("aabb", "ccdd"), workers=2)
    assert report.files == 0
    assert list(report.findings) == [kind for kind in LABEL_KINDS if kind != "not_in_gallery"]
    assert "images are in memory, not in files" in report.to_text()


def test_classes_in_train_and_test():
    report = check_dataset(labelled("aabbcc", "bbddcc"), workers=2)
    assert report.findings["shared_classes"].examples == ["b", "c"]
    assert report.problems == []
    report = check_dataset(labelled("aabbcc", "dd", "dda"), workers=2)
    assert report.findings["shared_classes"].examples == ["a"]


def test_class_names_that_look_alike():
    names = ["caf\u00e9", "cafe\u0301", "Ant", "ant ", "bee", "be", "ＤＯＧ", "dog"]
    data = labelled("a" * 8, "b" * 8)
    images = dataclasses.replace(data.train, names=tuple(names), labels=torch.arange(8))
    report = check_dataset(dataclasses.replace(data, train=images), workers=2)
    assert sorted(report.findings["similar_names"].examples) == [
        "'Ant' = 'ant '",
        "'cafe\\u0301' = 'caf\\xe9'",
        "'dog' = '\\uff24\\uff2f\\uff27'",
    ]
    assert any(warning.startswith("class names that differ only in case") for warning in report.warnings)


def test_query_classes_that_the_gallery_lacks():
    report = check_dataset(labelled("aabb", "ccdef", "cfg"), workers=2)
    assert list(report.splits) == ["train", "query", "gallery"]
    assert report.findings["not_in_gallery"].examples == ["d", "e"]
    assert report.findings["queries_without_positive"].examples == ["d2", "e3"]
    assert report.splits["query"].classes == 4
    assert report.problems == []


@pytest.mark.parametrize("gallery", [False, True])
def test_queries_without_positive(gallery):
    """Compare with a loop over all queries and images."""
    random = np.random.default_rng(0)
    for _ in range(30):
        query = "".join(random.choice(list("cdefgh"), 5))
        other = "".join(random.choice(list("cdefgh"), 4)) if gallery else None
        without = [
            f"{name}{i}"
            for i, name in enumerate(query)
            if not any(name == it and (gallery or i != j) for j, it in enumerate(other or query))
        ]
        report = check_dataset(labelled("aabb", query, other), workers=2)
        assert report.findings["queries_without_positive"].count == len(without)
        assert report.findings["queries_without_positive"].examples == without[:3]
        assert any("no query has" in problem for problem in report.problems) == (len(without) == len(query))


def seen_by(images, cameras):
    return dataclasses.replace(images, factors={"camera": torch.tensor(cameras)})


def test_queries_without_positive_by_another_camera():
    data = labelled("aabb", "ccdde")
    data = dataclasses.replace(data, test=seen_by(data.test, [0, 1, 2, 2, 3]))
    report = check_dataset(data, workers=2)
    assert report.findings["queries_without_positive"].examples == ["d2", "d3", "e4"]
    assert report.problems == []
    assert "images by the same camera do not count" in report.warnings[0]
    data = labelled("aabb", "cd", "cddd")
    data = dataclasses.replace(
        data, test=seen_by(data.test, [0, 1]), gallery=seen_by(data.gallery, [0, 1, 1, 2])
    )
    assert check_dataset(data, workers=2).findings["queries_without_positive"].examples == ["c0"]


def test_no_positive_from_another_camera_is_a_problem():
    data = labelled("aabb", "ccdd")
    data = dataclasses.replace(data, test=seen_by(data.test, [0, 0, 0, 0]))
    (problem,) = check_dataset(data, workers=2).problems
    assert "by another camera to find" in problem
    assert "--same-camera keep" in problem


@pytest.mark.parametrize(("train", "wrong"), [("ab", True), ("aab", True), ("aabb", False), ("aabbc", False)])
def test_two_training_classes_of_two_images(train, wrong):
    report = check_dataset(labelled(train, "ddee"), workers=2)
    assert any(problem.startswith("train must have") for problem in report.problems) == wrong


# What is printed


def test_json_holds_everything(tmp_path):
    copy(fine(tmp_path), "train/ant/0.png", "test/dog/copy.png")
    report = checked(tmp_path)
    held = json.loads(report.to_json())
    assert held["splits"]["train"]["class_sizes"] == {"1": 0, "2-3": 2}
    assert held["findings"]["duplicates_train_test"] == {
        "count": 1,
        "examples": ["train/ant/0.png = test/dog/copy.png"],
    }
    assert held["problems"] == report.problems
    assert len(held["problems"]) == 1
    assert held["warnings"] == report.warnings


def test_table(tmp_path):
    sizes = {"ant": 3, "bee": 2, "cow": 1}
    photos(tmp_path, {"train": sizes, "query": {"elk": 2}, "gallery": {"elk": 4}})
    (tmp_path / "train" / "ant" / "x.png").touch()
    lines = checked(tmp_path).to_text().splitlines()
    table = {" ".join(line.split()) for line in lines}
    assert f"{tmp_path.name} train query gallery" in table
    assert {"images 7 2 4", "classes 3 1 1", "of 1 image 1 0 0", "of 2-3 images 1 1 0"} <= table
    assert {"of 4-7 images 1 0 1", "files read 13", "files of zero bytes 1", "CMYK files 0"} <= table
    assert lines[-2:] == [
        "warning: training classes with one image: 1 (cow); training refuses them; "
        "add images or use --singletons drop",
        "problem: files of zero bytes: 1 (train/ant/x.png); copy or download them again, or remove them",
    ]
