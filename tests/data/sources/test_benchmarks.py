from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from divconq.data import is_dataset, open_dataset
from divconq.data.sources.cars import read_cars
from divconq.data.sources.cub import read_cub
from divconq.data.sources.inshop import read_inshop
from divconq.data.sources.official_layout import Count
from divconq.data.sources.registry import READERS
from divconq.data.sources.sop import read_sop
from divconq.data.sources.vehicleid import read_vehicleid

REAL = Path(__file__).resolve().parents[4] / "shared" / "data"


def save(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (12, 8), (200, 100, 50)).save(root / path)


def write(file, *lines):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines))


# Miniature copies of the official layouts: a few images, the rest as published

BIRDS = ["001.Black_footed_Albatross", "002.Groove_billed_Ani", "003.Sooty_Albatross", "004.Least_Auklet"]
CUB_COUNTS = {"train": Count(2, 4), "test": Count(2, 3)}


def make_cub(root):
    images = [(0, "a"), (0, "b"), (1, "a"), (1, "b"), (2, "a"), (2, "b"), (3, "a")]
    paths = [f"{BIRDS[bird]}/{name}.jpg" for bird, name in images]
    write(root / "images.txt", *(f"{i} {path}" for i, path in enumerate(paths, 1)))
    write(root / "image_class_labels.txt", *(f"{i} {bird + 1}" for i, (bird, _) in enumerate(images, 1)))
    write(root / "classes.txt", *(f"{i} {name}" for i, name in enumerate(BIRDS, 1)))
    save(root / "images", *paths)
    return root


MODELS = ["AM General Hummer SUV 2000", "Acura Integra Type R 2001", "Acura RL Sedan 2012", "BMW X5 SUV 2007"]
CARS_COUNTS = {"train": Count(2, 3), "test": Count(2, 3)}
FIELDS = ("relative_im_path", "bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "test")


def cell(values):
    names = np.empty((1, len(values)), dtype=object)
    names[0] = values
    return names


def records(fields, rows):
    table = np.empty((1, len(rows)), dtype=[(name, object) for name in fields])
    for i, row in enumerate(rows):
        table[0, i] = row
    return table


def make_cars(root):
    from scipy.io import savemat

    root.mkdir(parents=True, exist_ok=True)
    classes = [1, 1, 2, 3, 4, 4]
    paths = [f"car_ims/{i:06d}.jpg" for i in range(1, 7)]
    rows = [
        (path, 1, 2, 10, 7, number, i % 2)
        for i, (path, number) in enumerate(zip(paths, classes, strict=True))
    ]
    savemat(root / "cars_annos.mat", {"annotations": records(FIELDS, rows), "class_names": cell(MODELS)})
    save(root, *paths)
    return root


def make_cars_devkit(root, with_labels="devkit/cars_test_annos_withlabels.mat"):
    from scipy.io import savemat

    (root / "devkit").mkdir(parents=True)
    fields = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname")
    savemat(root / "devkit/cars_meta.mat", {"class_names": cell(MODELS)})
    for file, folder, classes in (
        ("devkit/cars_train_annos.mat", "cars_train", [4, 1, 3]),
        (with_labels, "cars_test", [2, 1, 4]),
    ):
        names = [f"{i:05d}.jpg" for i in range(1, 4)]
        rows = [(1, 2, 10, 7, number, name) for number, name in zip(classes, names, strict=True)]
        savemat(root / file, {"annotations": records(fields, rows)})
        save(root / folder, *names)
    return root


SOP_COUNTS = {"train": Count(3, 4), "test": Count(2, 3)}


def make_sop(root):
    heading = "image_id class_id super_class_id path"
    train = ["1 1 1 bicycle_final/1_0.JPG", "2 1 1 bicycle_final/1_1.JPG"]
    train += ["3 2 11 toaster_final/2_0.JPG", "4 3 2 cabinet_final/3_0.JPG"]
    test = ["5 10 1 bicycle_final/4_0.JPG", "6 10 1 bicycle_final/4_1.JPG", "7 11 11 toaster_final/5_0.JPG"]
    write(root / "Ebay_train.txt", heading, *train)
    write(root / "Ebay_test.txt", heading, *test)
    save(root, *(line.split()[-1] for line in train + test))
    return root


INSHOP_COUNTS = {"train": Count(2, 3), "query": Count(2, 2), "gallery": Count(2, 3)}


def make_inshop(root, partition="Eval/list_eval_partition.txt", above=""):
    lines = [
        "img/WOMEN/Dresses/id_00000002/02_1_front.jpg                     id_00000002 train",
        "img/WOMEN/Dresses/id_00000002/02_2_side.jpg                      id_00000002 train",
        "img/WOMEN/Blouses_Shirts/id_00000001/02_1_front.jpg              id_00000001 query",
        "img/WOMEN/Blouses_Shirts/id_00000001/02_2_side.jpg               id_00000001 gallery",
        "img/WOMEN/Blouses_Shirts/id_00000001/02_3_back.jpg               id_00000001 gallery",
        "img/MEN/Denim/id_00000080/01_1_front.jpg                         id_00000080 gallery",
        "img/MEN/Denim/id_00000080/01_2_side.jpg                          id_00000080 query",
        "img/MEN/Denim/id_00000003/01_2_side.jpg                          id_00000003 train",
    ]
    write(root / partition, str(len(lines)), "image_name item_id evaluation_status", *lines)
    save(root / above, *(line.split()[0] for line in lines))
    return root


VEHICLE_COUNTS = {"train": Count(2), "800": Count(1), "1600": Count(2), "2400": Count(3)}


def make_vehicleid(root):
    lists = {
        "train_list": ["0000007 100", "0000001 9", "0000002 9"],
        "test_list_800": ["0000003 200", "0000004 200"],
        "test_list_1600": ["0000003 200", "0000004 200", "0000005 201"],
        "test_list_2400": ["0000003 200", "0000006 202", "0000004 200", "0000005 201"],
    }
    for name, lines in lists.items():
        write(root / "train_test_split" / f"{name}.txt", *lines)
    save(root / "image", *(f"{i:07d}.jpg" for i in range(1, 8)))
    return root


LAYOUTS = {
    "cub": (make_cub, read_cub, CUB_COUNTS, "CUB_200_2011"),
    "cars": (make_cars, read_cars, CARS_COUNTS, "cars196"),
    "sop": (make_sop, read_sop, SOP_COUNTS, "Stanford_Online_Products"),
    "inshop": (make_inshop, read_inshop, INSHOP_COUNTS, "In-shop Clothes Retrieval Benchmark"),
    "vehicleid": (make_vehicleid, read_vehicleid, VEHICLE_COUNTS, "VehicleID_V1.0"),
}
every_layout = pytest.mark.parametrize(("make", "read", "counts", "folder"), LAYOUTS.values(), ids=LAYOUTS)


# Reading


def test_cub(tmp_path):
    data = read_cub(make_cub(tmp_path), size=8, counts=CUB_COUNTS)
    assert (data.name, data.gallery, data.gallery_draws) == ("cub", None, 0)
    assert (data.train.names, data.test.names) == (tuple(BIRDS[:2]), tuple(BIRDS[2:]))
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([0, 0, 1, 1], [0, 0, 1])
    assert data.train.paths[2] == "images/002.Groove_billed_Ani/a.jpg"
    assert data.train.groups.tolist() == [0, 0, 1, 1], "Albatross, Ani"
    assert data.test.groups.tolist() == [0, 0, 2], "Albatross, Auklet"


def test_cub_does_not_depend_on_line_order(tmp_path):
    labels = make_cub(tmp_path) / "image_class_labels.txt"
    write(labels, *reversed(labels.read_text().splitlines()))
    assert read_cub(tmp_path, size=8, counts=CUB_COUNTS).train.labels.tolist() == [0, 0, 1, 1]


def test_cars(tmp_path):
    data = read_cars(make_cars(tmp_path), size=8, counts=CARS_COUNTS)
    assert (data.train.names, data.test.names) == (tuple(MODELS[:2]), tuple(MODELS[2:]))
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([0, 0, 1], [0, 1, 1])
    assert data.test.paths == ("car_ims/000004.jpg", "car_ims/000005.jpg", "car_ims/000006.jpg")
    assert data.train.groups.tolist() == [0, 0, 2], "SUV, other"
    assert data.test.groups.tolist() == [1, 0, 0], "Sedan, SUV"


@pytest.mark.parametrize("place", ["devkit/", ""])
def test_cars_in_two_lists(tmp_path, place):
    make_cars_devkit(tmp_path, f"{place}cars_test_annos_withlabels.mat")
    data = read_cars(tmp_path, size=8, counts=CARS_COUNTS)
    assert (data.train.names, data.test.names) == (tuple(MODELS[:2]), tuple(MODELS[2:]))
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([0, 0, 1], [0, 1, 1])
    assert data.train.paths == ("cars_train/00002.jpg", "cars_test/00002.jpg", "cars_test/00001.jpg")
    assert data.train.groups.tolist() == [0, 0, 2], "SUV, other"


def test_sop(tmp_path):
    data = read_sop(make_sop(tmp_path), size=8, counts=SOP_COUNTS)
    assert (data.train.names, data.test.names) == (("1", "2", "3"), ("10", "11"))
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([0, 0, 1, 2], [0, 0, 1])
    assert data.train.paths[2] == "toaster_final/2_0.JPG"
    assert (data.train.groups.tolist(), data.test.groups.tolist()) == ([0, 0, 2, 1], [0, 0, 2])


@pytest.mark.parametrize("partition", ["Eval/list_eval_partition.txt", "list_eval_partition.txt"])
@pytest.mark.parametrize("above", ["", "Img/"])
def test_inshop(tmp_path, partition, above):
    data = read_inshop(make_inshop(tmp_path, partition, above), size=8, counts=INSHOP_COUNTS)
    assert data.train.names == ("id_00000002", "id_00000003")
    assert data.test.names == data.gallery.names == ("id_00000001", "id_00000080")
    assert (data.test.labels.tolist(), data.gallery.labels.tolist()) == ([0, 1], [0, 0, 1])
    assert data.gallery.paths[2] == f"{above}img/MEN/Denim/id_00000080/01_1_front.jpg"
    assert data.train.groups.tolist() == [2, 2, 1], "Dresses, Denim"
    assert data.gallery.groups.tolist() == [0, 0, 1], "Blouses_Shirts, Denim"


@pytest.mark.parametrize(("test", "labels"), [("800", [0, 0]), ("1600", [0, 0, 1]), ("2400", [0, 0, 1, 2])])
def test_vehicleid(tmp_path, test, labels):
    data = read_vehicleid(make_vehicleid(tmp_path), test=test, size=8, counts=VEHICLE_COUNTS)
    assert data.test.labels.tolist() == labels
    assert data.test.names == ("200", "201", "202")[: max(labels) + 1]
    assert (data.train.names, data.train.labels.tolist()) == (("9", "100"), [0, 0, 1])
    assert data.train.paths == ("image/0000001.jpg", "image/0000002.jpg", "image/0000007.jpg")
    assert data.train.groups is data.gallery is None
    assert data.gallery_draws == 10


@every_layout
def test_root_may_be_the_parent_folder(tmp_path, make, read, counts, folder):
    make(tmp_path / folder)
    data, same = read(tmp_path, size=8, counts=counts), read(tmp_path / folder, size=8, counts=counts)
    assert data.train.paths == same.train.paths
    images = data.test.store.load(torch.arange(len(data.test)))
    assert images.shape == (len(data.test), 8, 8, 3)
    assert (images.float() - torch.tensor([200.0, 100.0, 50.0])).abs().max() < 5
    assert data.test.store.aspect.tolist() == [1.5] * len(data.test)


@pytest.mark.skipif(not (REAL / "CUB_200_2011").is_dir(), reason="the real CUB200-2011 is not here")
def test_the_real_cub():
    data = open_dataset("cub", root=REAL, size=64)
    assert (len(data.train), len(data.test)) == (5_864, 5_924)
    assert (len(data.train.names), len(data.test.names)) == (100, 100)
    assert (data.train.names[0], data.test.names[0]) == ("001.Black_footed_Albatross", "101.White_Pelican")
    assert data.train.labels.unique().tolist() == data.test.labels.unique().tolist() == list(range(100))
    assert data.train.store.load(torch.tensor([0, 5_863])).float().std() > 10


# By name


@pytest.mark.parametrize("name", READERS)  # also omniglot, see test_omniglot.py
def test_benchmark_without_root_is_an_error_with_remedy(name):
    assert is_dataset(name)
    with pytest.raises(ValueError, match=r"add --root DIR, .* official source is https://"):
        open_dataset(name)


def test_open_dataset_calls_the_named_reader(tmp_path):
    """Each reader refuses its miniature copy, because the counts of the full dataset are expected."""
    for name, wanted in {
        "cub": "test must have 5,924 images, got 3",
        "cars": "train must have 8,054 images, got 6",
        "sop": "train must have 11,318 classes, got 3; train must have 59,551 images, got 4",
        "inshop": "query must have 14,218 images, got 2; gallery must have 3,985 classes, got 2",
        "vehicleid": "test must have 2,400 classes, got 3",
        "vehicleid:800": "test must have 800 classes, got 1",
        "vehicleid:1600": "test must have 1,600 classes, got 2",
        "vehicleid:2400": "train must have 13,164 classes, got 2; test must have 2,400 classes, got 3",
    }.items():
        make, _, _, folder = LAYOUTS[name.partition(":")[0]]
        root = tmp_path / name.replace(":", "-")
        make(root / folder)
        if name == "cub":  # the first hundred classes are for training, so all images become test images
            lines = (root / folder / "image_class_labels.txt").read_text().split("\n")
            write(root / folder / "image_class_labels.txt", *lines[:4], "5 103", "6 103", "7 104")
            write(root / folder / "classes.txt", *(f"{i} {i:03d}.Bird" for i in range(1, 201)))
        with pytest.raises(ValueError, match=wanted):
            open_dataset(name, root=root, size=8)


def test_a_benchmark_name_is_not_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(make_cub(tmp_path / "cub").parent)
    with pytest.raises(ValueError, match="add --root"):
        open_dataset("cub")


# Errors


@every_layout
def test_missing_lists_are_named(tmp_path, make, read, counts, folder):
    with pytest.raises(ValueError, match=r"list files are missing: .*; get them from https://"):
        read(tmp_path, counts=counts)
    make(tmp_path / folder)
    lists = [file for file in (tmp_path / folder).rglob("*") if file.suffix in (".txt", ".mat")]
    for file in lists:
        text = file.read_bytes()
        file.unlink()
        with pytest.raises(
            ValueError, match=rf"1 of {len(lists)} list files are missing: .*{file.name}; get"
        ):
            read(tmp_path, counts=counts)
        file.write_bytes(text)


@every_layout
def test_one_error_lists_wrong_counts_and_missing_images(tmp_path, make, read, counts, folder):
    images = sorted(file for file in make(tmp_path).rglob("*") if file.suffix.lower() == ".jpg")
    for file in images:
        file.unlink()
    wrong = {split: Count(count.classes + (split != "train"), 77) for split, count in counts.items()}
    with pytest.raises(ValueError, match="complete") as error:
        read(tmp_path, counts=wrong)
    message = str(error.value)
    assert "train must have 77 images, got" in message
    assert "train must have 2 classes" not in message
    total = len(images)
    assert f"{total} of {total} image files are missing: " in message
    assert f".jpg and {total - 3} more; get it again from https://" in message.replace(".JPG", ".jpg")
    assert str(tmp_path) not in message.partition("are missing:")[2]


@every_layout
def test_unreadable_images_are_named(tmp_path, make, read, counts, folder):
    images = [file for file in make(tmp_path).rglob("*") if file.suffix.lower() == ".jpg"]
    images[2].write_text("no image")
    with pytest.raises(ValueError, match=rf"got 1 of {len(images)} that are not: .*{images[2].name}"):
        read(tmp_path, counts=counts)


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../outside.jpg", "a/../../outside.jpg", "C:\\a.jpg", "..\\a.jpg"]
)
def test_paths_outside_the_folder_are_refused(tmp_path, path):
    save(tmp_path, "outside.jpg")
    refused = pytest.raises(
        ValueError, match=r"line \d of .*txt must be .*PATH.*, a path below the folder of"
    )
    sop, cub, vehicles = make_sop(tmp_path / "1"), make_cub(tmp_path / "2"), make_vehicleid(tmp_path / "3")
    edit(sop / "Ebay_test.txt", "toaster_final/5_0.JPG", path)
    with refused:
        read_sop(sop, counts=SOP_COUNTS)
    edit(cub / "images.txt", f"{BIRDS[3]}/a.jpg", path)
    with refused:
        read_cub(cub, counts=CUB_COUNTS)
    edit(vehicles / "train_test_split/train_list.txt", "0000007", path)
    with refused:
        read_vehicleid(vehicles, counts=VEHICLE_COUNTS)


def edit(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_cars_and_inshop_paths_outside_the_folder_are_refused(tmp_path):
    from scipy.io import savemat

    rows = [(path, 1, 2, 3, 4, 1, 0) for path in ("car_ims/1.jpg", "../../etc/passwd")]
    savemat(tmp_path / "cars_annos.mat", {"annotations": records(FIELDS, rows), "class_names": cell(MODELS)})
    with pytest.raises(
        ValueError, match=r"annotation 2 of .*cars_annos.mat must .* a path that leads out of"
    ):
        read_cars(tmp_path, counts=CARS_COUNTS)
    partition = make_inshop(tmp_path) / "Eval/list_eval_partition.txt"
    edit(partition, "img/MEN/Denim/id_00000003/", "img/MEN/Denim/../../../../")
    with pytest.raises(
        ValueError, match=r"line \d+ of .* must be PATH TEXT TEXT, .* got 'img/MEN/Denim/\.\./"
    ):
        read_inshop(tmp_path, counts=INSHOP_COUNTS)


def test_linked_image_folder_is_accepted(tmp_path):
    root = make_cub(tmp_path / "cub")
    (root / "images").rename(tmp_path / "large disk")
    (root / "images").symlink_to(tmp_path / "large disk", target_is_directory=True)
    assert len(read_cub(root, counts=CUB_COUNTS).train) == 4


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("images.txt", "2 001", "two 001", r"line 2 of .*images.txt must be NUMBER PATH, .* got 'two 001"),
        ("images.txt", "a.jpg\n2", "a .jpg\n2", "line 1 of .*images.txt must be NUMBER PATH"),
        ("image_class_labels.txt", "3 2\n", "3\n", r"line 3 of .* must be NUMBER NUMBER, got '3'"),
        ("image_class_labels.txt", "3 2\n", "", "image_class_labels.txt must have a line .* 1 of them: 3"),
        (
            "classes.txt",
            "4 004.Least_Auklet",
            "",
            r"classes.txt must have a line .* got none for 1 of them: 4",
        ),
        ("images.txt", "7 004", "6 004", "images.txt must have one line .* got several for 1 of them: 6"),
        ("image_class_labels.txt", "7 4\n", "6 3\n", "labels.txt must have one line .* 1 of them: 6"),
        ("image_class_labels.txt", "7 4\n", "7 4\n8 4\n", "images.txt must have a line .* 1 of them: 8"),
    ],
)
def test_damaged_lists(tmp_path, file, old, new, message):
    edit(make_cub(tmp_path) / file, old, new)
    with pytest.raises(ValueError, match=message):
        read_cub(tmp_path, counts=CUB_COUNTS)


def test_damaged_inshop_lists(tmp_path):
    partition = make_inshop(tmp_path) / "Eval/list_eval_partition.txt"
    whole = partition.read_text()
    partition.write_text(whole.replace("query", "qurey"))
    with pytest.raises(ValueError, match="must say train, query or gallery, got 'qurey' for img/WOMEN"):
        read_inshop(tmp_path, counts=INSHOP_COUNTS)
    partition.write_text(whole.replace("img/MEN/Denim/id_00000003/", "img/"))
    with pytest.raises(ValueError, match=r"must be like img/WOMEN/.*got 'img/01_2_side.jpg'"):
        read_inshop(tmp_path, counts=INSHOP_COUNTS)


def test_damaged_cars_lists(tmp_path):
    from scipy.io import savemat

    file = make_cars(tmp_path) / "cars_annos.mat"
    whole = file.read_bytes()
    for damaged in (b"", b"no matrix", whole[: len(whole) // 2]):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"cars_annos.mat must be a MATLAB file with 'annotations', got"):
            read_cars(tmp_path, counts=CARS_COUNTS)
    savemat(file, {"class_names": cell(MODELS)})
    with pytest.raises(ValueError, match="must be a MATLAB file with 'annotations', got KeyError"):
        read_cars(tmp_path, counts=CARS_COUNTS)
    savemat(file, {"annotations": records(("fname", "class"), [("1.jpg", 1)]), "class_names": cell(MODELS)})
    with pytest.raises(ValueError, match="must have the field 'relative_im_path', got none"):
        read_cars(tmp_path, counts=CARS_COUNTS)
    savemat(
        file, {"annotations": records(FIELDS, [("1.jpg", 1, 2, 3, 4, 9, 0)]), "class_names": cell(MODELS)}
    )
    with pytest.raises(
        ValueError, match="must have a line for every number in use, got none for 1 of them: 9"
    ):
        read_cars(tmp_path, counts=CARS_COUNTS)


def test_lists_with_windows_line_ends_and_a_byte_order_mark(tmp_path):
    for file in make_sop(tmp_path).glob("*.txt"):
        file.write_bytes(b"\xef\xbb\xbf" + file.read_text().replace("\n", "\r\n").encode() + b"\r\n")
    assert len(read_sop(tmp_path, size=8, counts=SOP_COUNTS).train) == 4
