import csv
import datetime
import math
import sys
from decimal import Decimal

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from divconq.data import is_dataset, open_dataset
from divconq.data.images.decoding import decode
from divconq.data.sources.folder import read_folder
from divconq.data.sources.table import read_table
from divconq.data.sources.table_files import read_columns


def save(path, image=None, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    (image or Image.new("RGB", (12, 8), (200, 100, 50))).save(path, **options)
    return path


def write(path, columns):
    """Write a CSV or Parquet file with these columns, and the images that it lists if they are missing."""
    for name in columns.get("path", []):
        if name and not (path.parent / name).exists():
            save(path.parent / name)
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.table(columns), path)
        return path
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([list(columns), *zip(*columns.values(), strict=True)])
    return path


def columns(**others):
    """Return six images of four classes; one name contains a comma."""
    return {"path": [f"{i}.jpg" for i in range(6)], "label": ["b", "a", "b", "c, d", "a", "e"], **others}


both = pytest.mark.parametrize("suffix", [".csv", ".parquet"])


# Which images, which labels


@both
def test_train_and_test(tmp_path, suffix):
    split = ["train", "train", "test", "train", "test", "test"]
    data = read_table(write(tmp_path / f"birds{suffix}", columns(split=split)), size=8)
    assert (data.name, data.gallery) == ("birds", None)
    assert (data.train.names, data.train.labels.tolist()) == (("a", "b", "c, d"), [1, 0, 2])
    assert (data.test.names, data.test.labels.tolist()) == (("a", "b", "e"), [1, 0, 2])
    assert (data.train.paths, data.test.paths) == (("0.jpg", "1.jpg", "3.jpg"), ("2.jpg", "4.jpg", "5.jpg"))
    assert data.train.factors == {}
    images = data.test.store.load(torch.tensor([2, 0]))
    assert (images.float() - torch.tensor([200.0, 100.0, 50.0])).abs().max() < 5
    assert data.test.store.aspect.tolist() == [1.5] * 3


@both
def test_query_and_gallery_share_labels(tmp_path, suffix):
    split = ["train", "train", "query", "query", "gallery", "gallery"]
    table = write(tmp_path / f"t{suffix}", columns(split=split, camera=[30, 4, 4, 30, 200, 4]))
    data = read_table(table, size=8)
    assert data.test.names == data.gallery.names == ("a", "b", "c, d", "e")
    assert (data.test.labels.tolist(), data.gallery.labels.tolist()) == ([1, 2], [0, 3])
    numbers = {"200": 0, "30": 1, "4": 2}
    assert data.test.factors["camera"].tolist() == [numbers["4"], numbers["30"]]
    assert data.gallery.factors["camera"].tolist() == [numbers["200"], numbers["4"]]
    assert data.train.factors["camera"].dtype == torch.int64


@both
def test_labels_may_be_numbers(tmp_path, suffix):
    split = ["train", "train", "train", "test", "test", "test"]
    table = write(tmp_path / f"t{suffix}", {**columns(split=split), "label": [10, 2, 10, 7, 7, 8]})
    data = read_table(table, size=8)
    assert (data.train.names, data.train.labels.tolist()) == (("10", "2"), [0, 1, 0])
    assert (data.test.names, data.test.labels.tolist()) == (("7", "8"), [0, 0, 1])


@pytest.mark.parametrize(("share", "seed"), [(0.5, 0), (0.5, 1), (0.3, 2), (0.01, 0)])
def test_classes_are_split_as_in_a_folder(tmp_path, share, seed):
    names = [f"class {i}" for i in range(10)]
    paths = [f"{name}/{i}.jpg" for i in range(2) for name in names]
    table = write(tmp_path / "all.csv", {"path": paths, "label": names * 2})
    ours = read_table(table, size=8, test_classes=share, seed=seed)
    theirs = read_folder(tmp_path, size=8, test_classes=share, seed=seed)
    assert (ours.train.names, ours.test.names) == (theirs.train.names, theirs.test.names)
    assert sorted(ours.test.paths) == sorted(theirs.test.paths)
    assert all(
        ours.test.paths[i].startswith(ours.test.names[k]) for i, k in enumerate(ours.test.labels.tolist())
    )


def test_paths_are_relative_to_the_table_and_may_be_absolute(tmp_path, monkeypatch):
    elsewhere = save(tmp_path / "elsewhere" / "x.jpg")
    (tmp_path / "tables").mkdir()
    paths = ["here.jpg", "deeper/../z.jpg", str(elsewhere), "deeper/y.jpg", "..x.jpg"]
    save(tmp_path / "tables" / "deeper" / "y.jpg")
    write(tmp_path / "tables" / "t.csv", {"path": paths, "label": list("abcde"), "more": list("?????")})
    monkeypatch.chdir(tmp_path)
    data = open_dataset("tables/t.csv", size=8)
    assert sorted(data.train.paths + data.test.paths) == sorted(paths)


@both
@pytest.mark.parametrize("path", ["../x.jpg", "a/../../x.jpg", "./../tables/../x.jpg", "..", "..\\x.jpg"])
def test_relative_paths_that_leave_the_folder_are_refused(tmp_path, suffix, path):
    """Absolute paths are allowed."""
    save(tmp_path / "x.jpg")
    (tmp_path / "tables" / "a").mkdir(parents=True)
    table = write(tmp_path / "tables" / f"t{suffix}", columns())
    table = write(table, columns() | {"path": ["0.jpg", "1.jpg", path, "3.jpg", "4.jpg", "5.jpg"]})
    with pytest.raises(
        ValueError, match=r"must stay below its folder, got 1 that leave it: .* in row 3; move"
    ):
        read_table(table)


def test_is_dataset_accepts_tables(tmp_path):
    table = write(tmp_path / "T.CSV", columns())
    assert is_dataset(str(table))
    assert not is_dataset(str(tmp_path))
    ours, same = open_dataset(str(table), size=8, seed=3), read_table(table, size=8, seed=3)
    assert ours.test.paths == same.test.paths


def test_spaces_blank_lines_and_a_byte_order_mark(tmp_path):
    table = write(tmp_path / "t.csv", columns())
    text = "\ufeffpath , label\r\n\r\n" + "".join(f"{i}.jpg, {i % 4}\r\n" for i in range(6))
    table.write_bytes(text.encode())
    data = read_table(table, size=8)
    assert sorted(data.train.names + data.test.names) == ["0", "1", "2", "3"]


# Boxes


def waves(width, height):
    """Return a smooth picture whose channels and axes all differ."""
    y, x = np.mgrid[0:height, 0:width]
    x, y = x / width, y / height
    layers = [0.5 + 0.5 * np.sin(5 * x + 2 * y), 0.5 + 0.5 * np.cos(3 * y - x), x * y]
    return Image.fromarray((np.stack(layers, axis=-1) * 255).astype(np.uint8))


def cropped(image, box, size):
    """Return the box with its short side resized, then resampled to a square."""
    sides, short = (box[2] - box[0], box[3] - box[1]), size - size // 5
    shape = [int(short * length / min(sides) + 1e-3) for length in sides]
    x, y = int(box[0]), int(box[1])
    part = image.crop((x, y, math.ceil(box[2]), math.ceil(box[3])))
    shown = part.resize(
        shape, Image.Resampling.BILINEAR, box=(box[0] - x, box[1] - y, box[2] - x, box[3] - y)
    )
    return np.asarray(shown.resize((size, size), Image.Resampling.LANCZOS)).astype(int)


@both
def test_boxes_crop(tmp_path, suffix):
    box = {
        "x1": [0, 3, 2, 0, 0, 0],
        "y1": [0, 1, 0, 0, 0, 0],
        "x2": [12, 9, 3, 12, 6, 12],
        "y2": [8, 4, 8, 8, 8, 1],
    }
    for i in range(6):
        save(tmp_path / f"{i}.png", waves(12, 8))
    table = {**columns(split=["train", "test"] * 3, **box), "path": [f"{i}.png" for i in range(6)]}
    data = read_table(write(tmp_path / f"t{suffix}", table), size=4)
    for images, rows in ((data.train, (0, 2, 4)), (data.test, (1, 3, 5))):
        for image, row, aspect in zip(
            images.store.load(torch.arange(3)), rows, images.store.aspect, strict=True
        ):
            x1, y1, x2, y2 = (box[name][row] for name in ("x1", "y1", "x2", "y2"))
            assert aspect == pytest.approx((x2 - x1) / (y2 - y1))
            assert np.abs(image.numpy() - cropped(waves(12, 8), (x1, y1, x2, y2), 4)).max() <= 1


@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_refer_to_upright_image(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = save(tmp_path / "0.jpg", waves(96, 48), exif=exif, quality=95)
    with Image.open(file) as image:
        upright = ImageOps.exif_transpose(image).convert("RGB")
    box = (8, 20, 40, 44)
    assert np.abs(decode(file, 16, box) - cropped(upright, box, 16)).max() <= 4


@pytest.mark.parametrize("name", ["large.jpg", "large.png"])
@pytest.mark.parametrize("box", [(100, 200, 1300, 900), (700, 20, 790, 1000), (0.5, 10.25, 33, 40)])
def test_boxes_of_large_files_are_decoded_accurately(tmp_path, name, box):
    """Decoding at a fraction of the size must give nearly the same pixels."""
    image = waves(1500, 1100)
    file = save(tmp_path / name, image, **({"quality": 95} if name.endswith("jpg") else {}))
    assert np.abs(decode(file, 64, box) - cropped(image, box, 64)).max() <= 4


@pytest.mark.parametrize(
    "box",
    [
        (0, 0, 13, 8),
        (0, 0, 12, 9),
        (-1, 0, 5, 5),
        (0, -1, 5, 5),
        (5, 0, 5, 8),
        (0, 7, 12, 3),
        (3, 0, 3.9, 8),
        (0, 7.5, 12, 8),
        (0, 0, 1e30, 8),
    ],
)
def test_box_outside_image_or_empty_is_an_error(tmp_path, box):
    box_columns = {
        name: [value] * 4 + [whole] * 2
        for name, value, whole in zip(("x1", "y1", "x2", "y2"), box, (0, 0, 12, 8), strict=True)
    }
    with pytest.raises(
        ValueError, match=r"got 4 of 6 that do not: .*jpg in row \d \(.* in 12 x 8\), .* and 1 more; correct"
    ):
        read_table(write(tmp_path / "t.csv", columns(**box_columns)))


@both
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e400"])
def test_box_that_is_not_finite_is_an_error(tmp_path, suffix, value):
    box = {"x1": ["0"] * 6, "y1": ["0"] * 6, "x2": ["9", "9", value, "9", "9", "9"], "y2": ["8"] * 6}
    with pytest.raises(ValueError, match=f"must be finite numbers, got '{value}' in row 3; correct them"):
        read_table(write(tmp_path / f"t{suffix}", columns(**box)))


def test_boxes_of_a_pixel_are_allowed(tmp_path):
    """One pixel, and a little less from rounding."""
    box = {"x1": [3] * 6, "y1": [5.1] * 6, "x2": [4, 4, 3.9999, 4, 4, 4], "y2": [6.1] * 6}
    assert len(read_table(write(tmp_path / "t.csv", columns(**box)), size=8).train) > 0


# Errors


def test_no_file(tmp_path):
    for name in ("t.csv", "t.parquet"):
        with pytest.raises(ValueError, match=rf"the file .*{name} does not exist; check the spelling"):
            open_dataset(str(tmp_path / name))


@both
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": None}, "must have the columns path, label, got path; add label"),
        ({"path": None, "label": None, "file": ["1.jpg"] * 6}, "add path, label"),
        (
            {"x1": [1] * 6, "y2": [1] * 6},
            "must have the columns path, label, x1, y1, x2, y2, got .*; add y1, x2",
        ),
        ({"path": [], "label": []}, "must have a row for each image, got none"),
        ({"label": ["a", "", "b", "", "c", "d"]}, "must have a label, got 2 without: row 2, 4; fill"),
        ({"path": ["", *(f"{i}.jpg" for i in range(5))]}, "must have a path, got 1 without: row 1"),
        ({"camera": ["1", "1", "1", "", "", ""]}, "must have a camera, got 3 without: row 4, 5, 6"),
        ({"split": ["train", "val"] * 3}, "query or gallery, got 'val' in row 2, 'val' in row 4, .*; rename"),
        ({"split": ["train"] * 6}, "must have train and test, or train, query and gallery, got only train"),
        ({"split": ["test"] * 6}, "got only test"),
        ({"split": ["train", "query", "test"] * 2}, "got only train, test, query"),
        ({"split": ["train", "query"] * 3}, "got only train, query"),
        ({"split": ["train", *["test"] * 5]}, "must have at least two classes to train on, got one"),
        (
            {"label": list("aabbcc")},
            "must have at least four classes, .* got 3; add classes, or a column split",
        ),
        (
            {name: ["1", "2", "x", "4", "5", "6"] for name in ("x1", "y1", "x2", "y2")},
            "must be finite numbers, got 'x' in row 3, 'x' in row 3, 'x' in row 3 and 1 more; correct",
        ),
    ],
)
def test_missing_columns_and_values_are_errors(tmp_path, suffix, change, message):
    changed = {name: values for name, values in {**columns(), **change}.items() if values is not None}
    with pytest.raises(ValueError, match=message):
        read_table(write(tmp_path / f"t{suffix}", changed))


def test_missing_values_of_parquet(tmp_path):
    table = write(tmp_path / "t.parquet", {**columns(), "label": ["a", None, "b", "c", "d", "e"]})
    with pytest.raises(ValueError, match="must have a label, got 1 without: row 2"):
        read_table(table)


NAN = float("nan")


@pytest.mark.parametrize("name", ["label", "camera", "x1"])
@pytest.mark.parametrize("missing", [NAN, None])
def test_missing_numbers_of_parquet(tmp_path, name, missing):
    numbers = {"label": [1, 2, 3, 4, 4, 4], "camera": [1] * 6, **dict.fromkeys(("x1", "y1"), [0] * 6)}
    table = {**columns(**numbers), "x2": [9] * 6, "y2": [8] * 6}
    table[name] = [float(value) for value in table[name][:3]] + [missing] * 2 + [4.0]
    with pytest.raises(ValueError, match=rf"must have a {name}, got 2 without: row 4, 5; fill them in"):
        read_table(write(tmp_path / "t.parquet", table))


def of_parquet(tmp_path, label):
    """Return the labels of a Parquet file with this column."""
    pyarrow = pytest.importorskip("pyarrow")
    label = label if isinstance(label, pyarrow.Array) else pyarrow.array(label)
    return list(read_columns(write(tmp_path / "t.parquet", {**columns(), "label": label}))["label"])


def test_labels_of_parquet_are_those_of_csv(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    numbers = [10, -2, 10, 7, 0, 1 << 60]
    as_csv = read_columns(write(tmp_path / "t.csv", {**columns(), "label": numbers}))["label"]
    assert of_parquet(tmp_path, numbers) == list(as_csv) == [str(number) for number in numbers]
    for kind in ("int8", "uint16", "int32", "float16", "float32", "float64"):
        array = pyarrow.array(np.array([10, 2, 10, 7, 0, 1], dtype=kind))
        assert of_parquet(tmp_path, array) == ["10", "2", "10", "7", "0", "1"], kind
    decimals = [Decimal("1.00"), Decimal("2.00")] * 3
    assert of_parquet(tmp_path, decimals) == ["1", "2"] * 3
    assert of_parquet(tmp_path, [True, False] * 3) == ["True", "False"] * 3
    words = ["b", "nan", "None", " é ", "b", "1.0"]
    for array in (
        pyarrow.array(words),
        pyarrow.array(words, pyarrow.large_string()),
        pyarrow.array(words).dictionary_encode(),
    ):
        assert of_parquet(tmp_path, array) == [word.strip() for word in words]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([b"a"] * 6, r"text or numbers, got b'a' in row 1 \(binary\); save it as text"),
        ([["a"]] * 6, r"text or numbers, got \['a'\] in row 1 \(list<.*>\)"),
        ([{"name": "a"}] * 6, r"text or numbers, got {'name': 'a'} in row 1 \(struct<.*>\)"),
        ([None, *[datetime.datetime(2024, 1, 1)] * 5], r"text or numbers, got .* in row 2 \(timestamp"),
        ([datetime.date(2024, 1, 1)] * 6, r"text or numbers, got .* in row 1 \(date32"),
        ([1.0, 2.0, 2.5, 1.0, 1.0, 1.0], "text or whole numbers, got 2.5 in row 3; save it as text"),
        ([1.0, math.inf, 2.5, 1.0, 1.0, 1.0], "text or whole numbers, got inf in row 2"),
    ],
)
def test_labels_of_other_types_are_errors(tmp_path, values, message):
    with pytest.raises(ValueError, match=message):
        of_parquet(tmp_path, values)


def hard(link, target):
    link.hardlink_to(target)


def symbolic(link, target):
    link.symlink_to(target)


@pytest.mark.parametrize("make", [hard, symbolic])
def test_links_of_one_image_are_one_image(tmp_path, make):
    save(tmp_path / "0.jpg")
    make(tmp_path / "4.jpg", tmp_path / "0.jpg")
    split = ["train", "train", "train", "test", "test", "test"]
    with pytest.raises(
        ValueError,
        match=r"must have one label, got 1 with another: 0.jpg = 4.jpg in rows 1 and 5 \(b, a\); correct",
    ):
        read_table(write(tmp_path / "t.csv", columns(split=split)))
    same = {**columns(split=split), "label": ["a", "a", "b", "c, d", "a", "e"]}
    with pytest.raises(
        ValueError, match=r"in train and in another split, got 1 that are: 0.jpg = 4.jpg in rows 1 and 5;"
    ):
        read_table(write(tmp_path / "t.csv", same))
    same["split"] = ["test", "train", "train", "test", "test", "test"]
    assert len(read_table(write(tmp_path / "t.csv", same), size=8).test) == 4


def test_columns_of_other_types_are_ignored(tmp_path):
    table = write(tmp_path / "t.parquet", columns(taken=[datetime.date(2024, 1, 1)] * 6, note=[None] * 6))
    assert len(read_table(table, size=8).test.names) == 2


def test_missing_images_are_listed(tmp_path):
    table = write(tmp_path / "t.csv", columns())
    for i in (0, 2, 3, 5):
        (tmp_path / f"{i}.jpg").unlink()
    with pytest.raises(
        ValueError,
        match=r"got 4 of 6 that are not: .*0.jpg, .*2.jpg, .*3.jpg and 1 more; paths are relative",
    ):
        read_table(table)


def test_unreadable_images_are_listed(tmp_path):
    table = write(tmp_path / "t.csv", columns())
    (tmp_path / "4.jpg").write_text("no image")
    with pytest.raises(ValueError, match=r"got 1 of 6 .*4.jpg \(not an image of a known format\); remove"):
        read_table(table)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_share_out_of_range(tmp_path, share):
    with pytest.raises(ValueError, match="between 0 and 1"):
        read_table(write(tmp_path / "t.csv", columns()), test_classes=share)


def test_damaged_tables(tmp_path):
    pytest.importorskip("pyarrow")
    table = tmp_path / "t.csv"
    table.write_text("")
    with pytest.raises(ValueError, match=r"must have the columns path, label, got none; add path, label"):
        read_table(table)
    table.write_text("path,label\n1.jpg,a\n\n2.jpg,b,c\n")
    with pytest.raises(ValueError, match=r"line 4 of .*t.csv must have 2 values, .* got 3; put"):
        read_table(table)
    table.write_bytes("path,label\n1.jpg,Müller\n".encode("latin-1"))
    with pytest.raises(ValueError, match="must be a CSV file in UTF-8, got"):
        read_table(table)
    table = tmp_path / "t.parquet"
    table.write_text("path,label\n")
    with pytest.raises(ValueError, match="must be a Parquet file, got"):
        read_table(table)


def test_columns_named_twice(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    message = r"every column of .*t\.(csv|parquet) must have its own name, got label more than once; rename"
    parquet.write_table(
        pyarrow.table([["0.jpg"], ["a"], ["b"]], names=["path", "label", "label"]), tmp_path / "t.parquet"
    )
    (tmp_path / "t.csv").write_text("path,label, label\n0.jpg,a,b\n")
    for suffix in (".csv", ".parquet"):
        with pytest.raises(ValueError, match=message):
            read_table(tmp_path / f"t{suffix}")
    table = write(tmp_path / "notes.csv", columns())
    lines = [f"{line},x,y" for line in table.read_text().splitlines()]
    table.write_text("\n".join(["path,label,,", *lines[1:]]))
    assert len(read_table(table, size=8).test.names) == 2, "other columns may be called as they like"


@pytest.mark.parametrize("row", ['"2.jpg,c', '2.jpg,"c', '2.jpg,"c" d"'])
def test_a_row_with_an_open_quote_is_named_by_its_first_line(tmp_path, row):
    table = tmp_path / "t.csv"
    table.write_text(f'path,label\n1.jpg,"a\nb"\n\n{row}\n3.jpg,d\n')
    with pytest.raises(ValueError, match=r"line 5 of .*t.csv must have values .*; close every quote"):
        read_table(table)


def test_image_with_two_labels_or_splits_is_an_error(tmp_path):
    """Compare with a naive check of every pair of rows."""
    random = np.random.default_rng(0)
    seen = set()
    for trial in range(40):
        rows = 7
        path = [f"{i}.jpg" for i in random.integers(0, 12, rows)]
        label = [str(name) for name in random.choice(list("ab"), rows)]
        split = [str(name) for name in random.choice(["train", "test"], rows)]
        left = [str(i) for i in random.integers(0, 2, rows)]
        # every draw has two training classes and a test image
        path, label, left = (
            [*path, "20.jpg", "21.jpg", "22.jpg"],
            [*label, "a", "b", "a"],
            [*left, "0", "0", "0"],
        )
        split = [*split, "train", "train", "test"]
        box = {"x1": left, "y1": ["0"] * 10, "x2": ["9"] * 10, "y2": ["8"] * 10} if trial % 2 else {}
        same = [
            (i, j)
            for j in range(10)
            for i in range(j)
            if path[i] == path[j] and (not box or left[i] == left[j])
        ]
        mixed = any(label[i] != label[j] for i, j in same)
        leaked = any(split[i] != split[j] for i, j in same)
        table = write(tmp_path / "t.csv", {"path": path, "label": label, "split": split, **box})
        if mixed or leaked:
            message = "must have one label, got" if mixed else "may be in train and in another split, got"
            with pytest.raises(ValueError, match=message):
                read_table(table, size=8)
        else:
            read_table(table, size=8)
        seen.add((mixed, leaked))
    assert len(seen) == 4


def test_parquet_without_its_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "t.parquet").write_bytes(b"")
    with pytest.raises(ValueError, match="needs the package pyarrow; pip install pyarrow, or save it as CSV"):
        read_table(tmp_path / "t.parquet")
