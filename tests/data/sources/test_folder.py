import errno
import os
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from divconq.data.images.decoding import decode
from divconq.data.sources.folder import SUFFIXES, flat_folder, read_folder


def save(path, image=None, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    (image or Image.new("RGB", (12, 8), (200, 100, 50))).save(path, **options)
    return path


def classes_of(root, counts):
    for name, count in counts.items():
        for i in range(count):
            save(root / name / f"{i}.png")
    return root


def waves(width, height):
    """Return a smooth picture whose channels and axes all differ."""
    y, x = np.mgrid[0:height, 0:width]
    x, y = x / width, y / height
    layers = [0.5 + 0.5 * np.sin(5 * x + 2 * y), 0.5 + 0.5 * np.cos(3 * y - x), x * y]
    return Image.fromarray((np.stack(layers, axis=-1) * 255).astype(np.uint8))


# Which images, which labels


def test_classes_are_sorted_and_labelled(tmp_path):
    for name in ("zebra", "Ant", "bee 2", "cat"):
        for file in ("b.png", "a.jpg", "deeper/still/c.PNG"):
            save(tmp_path / name / file)
    data = read_folder(tmp_path, size=8)
    assert data.name == tmp_path.name
    assert data.gallery is None
    for images in (data.train, data.test):
        assert images.names == tuple(sorted(images.names))
        assert images.paths == tuple(
            f"{name}/{file}" for name in images.names for file in ("a.jpg", "b.png", "deeper/still/c.PNG")
        )
        assert images.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert sorted(data.train.names + data.test.names) == ["Ant", "bee 2", "cat", "zebra"]


def test_files_that_are_not_images_are_ignored(tmp_path):
    classes_of(tmp_path, {"a": 1, "b": 2, "c": 1, "d": 1})
    (tmp_path / "empty").mkdir()
    (tmp_path / "a" / "notes.txt").write_text("no image")
    (tmp_path / "a" / "folder.png").mkdir()
    (tmp_path / "README").write_text("no image")
    save(tmp_path / ".hidden" / "0.png")
    save(tmp_path / "a" / ".thumbs" / "0.png")
    (tmp_path / "b" / "._0.png").write_text("what macOS leaves behind")
    data = read_folder(tmp_path, size=8)
    assert sorted(data.train.paths + data.test.paths) == [
        "a/0.png",
        "b/0.png",
        "b/1.png",
        "c/0.png",
        "d/0.png",
    ]


@pytest.mark.parametrize(("share", "count"), [(0.5, 5), (0.3, 3), (0.01, 2), (0.99, 8)])
def test_share_of_test_classes(tmp_path, share, count):
    names = [f"class {i}" for i in range(10)]
    data = read_folder(classes_of(tmp_path, dict.fromkeys(names, 1)), size=8, test_classes=share)
    assert len(data.test.names) == count
    assert sorted(data.train.names + data.test.names) == names


def test_split_depends_only_on_seed(tmp_path):
    classes_of(tmp_path, {f"class {i}": 1 for i in range(10)})
    splits = [read_folder(tmp_path, size=8, seed=seed).test.names for seed in (0, 0, 1, 2)]
    assert splits[0] == splits[1]
    assert len(set(splits)) == 3


def test_train_and_test_folders(tmp_path):
    classes_of(tmp_path / "train", {"a": 1, "b": 2})
    classes_of(tmp_path / "test", {"c": 2, "a": 1})
    data = read_folder(tmp_path, size=8)
    assert (data.train.names, data.train.labels.tolist()) == (("a", "b"), [0, 1, 1])
    assert (data.test.names, data.test.labels.tolist()) == (("a", "c"), [0, 1, 1])
    assert data.test.paths == ("test/a/0.png", "test/c/0.png", "test/c/1.png")
    assert data.gallery is None


def test_query_and_gallery_share_labels(tmp_path):
    classes_of(tmp_path / "train", {"a": 1, "b": 1})
    classes_of(tmp_path / "query", {"d": 1, "e": 2})
    classes_of(tmp_path / "gallery", {"c": 1, "d": 2, "f": 1})
    data = read_folder(tmp_path, size=8)
    assert data.test.names == data.gallery.names == ("c", "d", "e", "f")
    assert data.test.labels.tolist() == [1, 2, 2]
    assert data.gallery.labels.tolist() == [0, 1, 1, 3]
    assert data.train.names == ("a", "b")


def test_class_may_be_called_train(tmp_path):
    data = read_folder(classes_of(tmp_path, {"bus": 1, "car": 1, "ship": 1, "train": 1}), size=8)
    assert "train" in data.train.names + data.test.names


def test_flat_folder(tmp_path):
    root = tmp_path / "photos"
    for file in ("z.png", "b/1.png", "a/2.png", "c/b/0.png"):
        save(root / file)
    images = flat_folder(root, size=8)
    assert images.names == ("a", "b", "c", "photos"), "as in training, the class is the folder below the root"
    assert images.paths == ("a/2.png", "b/1.png", "c/b/0.png", "z.png")
    assert images.labels.tolist() == [0, 1, 2, 3]


def test_flat_folder_reads_linked_class_folders_as_training_does(tmp_path):
    for number, name in enumerate(("ant", "bee", "cat")):
        for image in range(2):
            save(
                tmp_path / "photos" / name / f"{image}.png",
                Image.new("RGB", (12, 8), (40 * number, image, 0)),
            )
            save(tmp_path / "disk" / "dog" / f"{image}.png", Image.new("RGB", (12, 8), (200, image, 0)))
    (tmp_path / "photos" / "dog").symlink_to(tmp_path / "disk" / "dog")
    data, flat = read_folder(tmp_path / "photos", size=8), flat_folder(tmp_path / "photos", size=8)
    assert sorted(flat.paths) == sorted(data.train.paths + data.test.paths)
    assert set(flat.names) == {*data.train.names, *data.test.names}


def test_flat_folder_of_working_directory(tmp_path, monkeypatch):
    save(tmp_path / "here" / "1.png")
    monkeypatch.chdir(tmp_path / "here")
    assert flat_folder(".", size=8).names == ("here",)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_suffix_can_be_read(tmp_path, suffix):
    image = Image.new("L", (12, 8), 100) if suffix == ".pgm" else Image.new("RGB", (12, 8), (100, 100, 100))
    save(tmp_path / f"0{suffix.upper()}", image)
    images = flat_folder(tmp_path, size=8)
    assert images.store.aspect.tolist() == [1.5]
    assert (images.store.load(torch.tensor([0])).float() - 100).abs().max() <= 3


# Pixels


def test_load_returns_images_in_index_order(tmp_path):
    colours = [(i * 30, 255 - i * 30, 7) for i in range(8)]
    for i, colour in enumerate(colours):
        save(tmp_path / f"{i}.png", Image.new("RGB", (10 + i, 10), colour))
    pixels = flat_folder(tmp_path, size=16, workers=3).store
    index = torch.tensor([5, 0, 7, 5])
    images = pixels.load(index)
    assert images.shape == (4, 16, 16, 3)
    assert images.dtype == torch.uint8
    for image, i in zip(images, index.tolist(), strict=True):
        assert torch.equal(image, torch.tensor(colours[i], dtype=torch.uint8).expand(16, 16, 3))
    torch.testing.assert_close(pixels.aspect, torch.arange(10, 18) / 10)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["0.jpg", "0.webp"])
def test_exif_rotation_is_applied(tmp_path, orientation, name):
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = save(tmp_path / name, waves(96, 48), exif=exif, quality=95)
    with Image.open(file) as image:
        upright = ImageOps.exif_transpose(image).convert("RGB")
    expected = squashed(upright, 32)
    images = flat_folder(tmp_path, size=32).store
    assert images.aspect.item() == upright.width / upright.height == (0.5 if orientation >= 5 else 2.0)
    assert np.abs(images.load(torch.tensor([0]))[0].numpy() - expected).max() <= 4


def test_unknown_orientation_is_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 9
    save(tmp_path / "0.jpg", waves(96, 48), exif=exif)
    assert flat_folder(tmp_path, size=32).store.aspect.item() == 2.0


def squashed(image, size):
    """Return the image with its short side resized, then resampled to a square."""
    short = size - size // 5
    shape = [int(short * length / min(image.size) + 1e-3) for length in image.size]
    shown = image.resize(shape, Image.Resampling.BILINEAR)
    return np.asarray(shown.resize((size, size), Image.Resampling.LANCZOS)).astype(int)


def grey_levels(width, height):
    return waves(width, height).convert("L")


def few_colours(width, height):
    return waves(width, height).quantize(64)


def sixteen_bits(width, height):
    return Image.fromarray(np.asarray(grey_levels(width, height)).astype(np.uint16) * 257)


def half_transparent(width, height):
    image = waves(width, height).convert("RGBA")
    image.paste((10, 20, 30, 0), (0, 0, width // 2, height))
    return image


def on_white(image):
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, (255, 255, 255, 255)), image).convert("RGB")


@pytest.mark.parametrize(
    ("name", "make", "expected"),
    [
        ("rgb.png", waves, waves),
        ("rgb.jpg", waves, waves),
        ("grey.jpg", grey_levels, lambda w, h: grey_levels(w, h).convert("RGB")),
        ("grey.png", grey_levels, lambda w, h: grey_levels(w, h).convert("RGB")),
        ("sixteen.png", sixteen_bits, lambda w, h: grey_levels(w, h).convert("RGB")),
        ("sixteen.tif", sixteen_bits, lambda w, h: grey_levels(w, h).convert("RGB")),
        ("cmyk.jpg", lambda w, h: waves(w, h).convert("CMYK"), waves),
        ("palette.png", few_colours, lambda w, h: few_colours(w, h).convert("RGB")),
        ("palette.gif", few_colours, lambda w, h: few_colours(w, h).convert("RGB")),
        ("alpha.png", half_transparent, lambda w, h: on_white(half_transparent(w, h))),
        ("alpha.webp", half_transparent, lambda w, h: on_white(half_transparent(w, h))),
    ],
)
def test_every_mode_becomes_rgb(tmp_path, name, make, expected):
    lossy = {"quality": 95} if name.endswith((".jpg", ".webp")) else {}
    file = save(tmp_path / name, make(60, 40), **lossy)
    difference = np.abs(decode(file, 32) - squashed(expected(60, 40), 32))
    assert difference.mean() < 2
    assert np.median(difference) <= 2


@pytest.mark.parametrize("transparency", [0, bytes([0, 255])])
def test_transparent_palette_becomes_white_without_a_warning(tmp_path, recwarn, transparency):
    image = Image.new("P", (8, 8), 0)
    image.putpalette([9, 9, 9, 50, 60, 70])
    image.paste(1, (4, 0, 8, 8))
    got = decode(save(tmp_path / "0.png", image, transparency=transparency), 8)
    assert got[0, 0].tolist() == [255, 255, 255]
    assert got[0, 7].tolist() == [50, 60, 70]
    assert not recwarn.list


@pytest.mark.parametrize("name", ["large.jpg", "large.png"])
def test_large_files_are_decoded_accurately(tmp_path, name):
    """Decoding at a fraction of the size must give nearly the same pixels."""
    image = waves(1500, 1100)
    file = save(tmp_path / name, image, **({"quality": 95} if name.endswith("jpg") else {}))
    with Image.open(file) as whole:
        expected = squashed(whole.convert("RGB"), 64)
    assert np.abs(decode(file, 64) - expected).max() <= 3


# Errors


def test_missing_path(tmp_path):
    for read in (read_folder, flat_folder):
        with pytest.raises(ValueError, match=r"got .*nowhere, which does not exist"):
            read(tmp_path / "nowhere")
        with pytest.raises(ValueError, match="which is a file"):
            read(save(tmp_path / "0.png"))


def test_no_class_folders(tmp_path):
    with pytest.raises(ValueError, match=r"one folder per class .* got no image"):
        read_folder(tmp_path)
    save(tmp_path / "0.png")
    with pytest.raises(ValueError, match="got 1 images directly in it"):
        read_folder(tmp_path)


def test_no_images(tmp_path):
    for name in "abcd":
        (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match=r"got no image \(they end in .jpg"):
        read_folder(tmp_path)
    with pytest.raises(ValueError, match="images in it or below, got none"):
        flat_folder(tmp_path)


def test_too_few_classes(tmp_path):
    with pytest.raises(ValueError, match=r"at least four class folders .* got 1"):
        read_folder(classes_of(tmp_path / "one", {"a": 3}))
    classes_of(tmp_path / "two" / "train", {"a": 3})
    classes_of(tmp_path / "two" / "test", {"b": 3, "c": 3})
    with pytest.raises(ValueError, match="train must have at least two class folders"):
        read_folder(tmp_path / "two")


@pytest.mark.parametrize("others", [[], ["query"], ["gallery"], ["test", "query", "gallery"]])
def test_incomplete_splits(tmp_path, others):
    for name in ("train", *others):
        classes_of(tmp_path / name, {"a": 1, "b": 1})
    with pytest.raises(ValueError, match="train/ and test/, or train/, query/ and gallery/, got only train/"):
        read_folder(tmp_path)


@pytest.mark.parametrize("share", [0.0, 1.0, 5.0])
def test_share_out_of_range(tmp_path, share):
    with pytest.raises(ValueError, match="between 0 and 1"):
        read_folder(classes_of(tmp_path, dict.fromkeys("abcd", 1)), test_classes=share)


def test_one_error_lists_unreadable_files_of_all_splits(tmp_path):
    classes_of(tmp_path / "train", {"a": 2, "b": 2})
    classes_of(tmp_path / "test", {"c": 2})
    for file in ("train/a/x.jpg", "train/b/x.jpg", "test/c/x.jpg", "test/c/y.jpg", "test/c/z.jpg"):
        Path(tmp_path, file).write_text("no image")
    with pytest.raises(
        ValueError, match=r"got 5 of 11 .*a/x.jpg .*, .*b/x.jpg .*, .*c/x.jpg .* and 2 more; remove"
    ):
        read_folder(tmp_path)


def test_truncated_file_is_named(tmp_path):
    file = save(tmp_path / "0.png", waves(60, 40))
    file.write_bytes(file.read_bytes()[:-400])
    with pytest.raises(ValueError, match=r"0.png cannot be decoded .*; remove it"):
        flat_folder(tmp_path, size=8).store.load(torch.tensor([0]))


@pytest.mark.parametrize("linked", ["train", "train/a", "train/a/0.png"])
def test_links_are_followed(tmp_path, linked):
    """Data on another disk is often linked."""
    root = tmp_path / "photos"
    classes_of(root / "train", {"a": 2, "b": 2})
    classes_of(root / "test", {"c": 2})
    before = read_folder(root, size=8)
    (tmp_path / "another disk").mkdir()
    first = sorted((root / "train" / "a").iterdir())[0]
    moved = first if linked.endswith("png") else root / linked
    moved.rename(tmp_path / "another disk" / moved.name)
    moved.symlink_to(tmp_path / "another disk" / moved.name)
    assert read_folder(root, size=8).train.paths == before.train.paths


def hard(link, target):
    if target.is_dir():
        pytest.skip("folders cannot be hard links")
    link.hardlink_to(target)


def symbolic(link, target):
    link.symlink_to(target)


@pytest.fixture
def four(tmp_path):
    return classes_of(tmp_path / "photos", dict.fromkeys("abcd", 2))


@pytest.mark.parametrize("make", [hard, symbolic])
@pytest.mark.parametrize(
    ("target", "link", "named"),
    [
        (
            "a/0.png",
            "b/x.png",
            r"got 1 with another: \w/.*.png = \w/.*.png \(\w, \w\); these are links to one file",
        ),
        ("a/0.png", "b/deeper.png", "got 1 with another"),
        ("a", "e", r"got 2 with another: \w/0.png = \w/0.png \(\w, \w\), \w/1.png = "),
    ],
)
def test_links_that_give_an_image_two_labels_are_refused(four, make, target, link, named):
    make(four / link, four / target)
    with pytest.raises(ValueError, match=f"every image of .*photos must have one label, {named}"):
        read_folder(four, size=8)


@pytest.mark.filterwarnings("ignore:.* is a link to a folder")
def test_a_class_that_links_to_the_folder_of_all_is_refused(four):
    (four / "loop").symlink_to(four)
    with pytest.raises(ValueError, match="must have one label, got 8 with another"):
        read_folder(four, size=8)


@pytest.mark.parametrize("make", [hard, symbolic])
def test_links_from_train_to_test_are_refused(tmp_path, make):
    classes_of(tmp_path / "train", {"a": 2, "b": 2})
    classes_of(tmp_path / "test", {"a": 1, "c": 2})
    make(tmp_path / "test" / "a" / "x.png", tmp_path / "train" / "a" / "1.png")
    with pytest.raises(
        ValueError,
        match=r"no image of .* may be in train and in another split, got 1 that are: train/a/1.png = test/a/x.png;",
    ):
        read_folder(tmp_path, size=8)


def test_links_within_a_class_or_from_query_to_gallery_are_allowed(tmp_path):
    for split in ("train", "query", "gallery"):
        classes_of(tmp_path / split, {"a": 2, "b": 2} if split == "train" else {"c": 1})
    symbolic(tmp_path / "train" / "a" / "x.png", tmp_path / "train" / "a" / "1.png")
    hard(tmp_path / "gallery" / "c" / "x.png", tmp_path / "query" / "c" / "0.png")
    data = read_folder(tmp_path, size=8)
    assert (len(data.train), len(data.gallery)) == (5, 2)


def test_equal_numbers_of_two_files_are_no_link(four, monkeypatch):
    """Some network file systems give all files the same number."""
    real = Path.stat

    def stat(self, **options):
        state = real(self, **options)
        known = {name: getattr(state, name) for name in dir(state) if name.startswith("st_")}
        return types.SimpleNamespace(**{**known, "st_dev": 0, "st_ino": 0})

    monkeypatch.setattr(Path, "stat", stat)
    for file in four.rglob("*.png"):
        os.utime(file, (0, 0))
    assert len(read_folder(four, size=8).train) == 4


def test_loops_of_links_end(four):
    (four / "a" / "loop").symlink_to(four / "a")
    (four / "b" / "x.png").symlink_to("y.png")
    (four / "b" / "y.png").symlink_to("x.png")
    with (
        pytest.warns(UserWarning, match="a/loop is a link to a folder, not followed"),
        pytest.raises(
            ValueError, match=r"got 2 of 10 that are not: .*x.png \(Too many levels of symbolic links\)"
        ),
    ):
        read_folder(four, size=8)


def test_folder_that_cannot_be_read_is_an_error(four, monkeypatch):
    """A class must not be left out in silence."""
    real = os.scandir

    def scandir(path):
        if Path(path).name == "c":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    for read in (read_folder, flat_folder):
        with pytest.raises(
            ValueError, match=r"photos/c cannot be read \(Permission denied\); change its perm"
        ):
            read(four, size=8)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
@pytest.mark.parametrize("name", [b"caf\xe9/0.png", b"a/caf\xe9.png", b"a/caf\xe9/0.png"])
def test_names_that_are_not_utf8_are_refused(four, name):
    file = Path(os.fsdecode(os.fsencode(four) + b"/" + name))
    save(file)
    for read in (read_folder, flat_folder):
        with pytest.raises(
            ValueError, match=r"must be UTF-8, got 1 that is not: .*/photos/.*caf\\xe9.*; rename it"
        ) as error:
            read(four, size=8)
        str(error.value).encode()


STRANGE = [
    "two\nlines",
    "tab\tname",
    "-dash",
    "x" * 255,
    "🦋",
    "שלום",
    "<script>alert(1)<",
    "space ",
    "a,b;c",
    '"q"',
]
STRANGE += ["%s{}", "'", "nan", "None", "\\"]


def test_strange_names_are_kept(tmp_path):
    classes_of(tmp_path, dict.fromkeys(STRANGE, 1))
    data = read_folder(tmp_path, size=8)
    assert sorted(data.train.names + data.test.names) == sorted(STRANGE)
