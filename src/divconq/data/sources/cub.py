"""CUB200-2011: bird species; the first half is for training."""

from collections.abc import Mapping
from pathlib import Path

from divconq.data.dataset import Dataset
from divconq.data.sources.list_files import look_up, read_numbered, relative_path
from divconq.data.sources.official_layout import Benchmark, Count, Row

CUB = Benchmark(
    "cub",
    "CUB200-2011",
    "https://www.vision.caltech.edu/datasets/cub_200_2011/",
    folders=("CUB_200_2011",),
    layouts=(("images.txt", "image_class_labels.txt", "classes.txt"),),
)
COUNTS = {"train": Count(100, 5_864), "test": Count(100, 5_924)}


def read_cub(
    root: Path | None, *, size: int = 256, workers: int = 4, counts: Mapping[str, Count] = COUNTS
) -> Dataset:
    """Read CUB200-2011. Classes 1 to 100 are for training, the others for testing.

    Groups are bird families, the last word of the class name: Albatross for 001.Black_footed_Albatross.

    >>> read_cub(Path("nowhere"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: --root must be the folder of CUB200-2011 or the one that contains it, got nowhere, ...
    """
    folder, (images, labels, classes) = CUB.find(root)
    path_of, class_of = read_numbered(images, relative_path), read_numbered(labels, int)
    look_up(list(class_of), path_of, images)  # every image with a class must have a path
    classes_of_images = look_up(list(path_of), class_of, labels)
    names = look_up(classes_of_images, read_numbered(classes, str), classes)
    rows: dict[str, list[Row]] = {"train": [], "test": []}
    for path, number, name in zip(path_of.values(), classes_of_images, names, strict=True):
        split = "train" if number <= counts["train"].classes else "test"
        rows[split].append(Row("images", path, name, name.rpartition("_")[2]))
    return CUB.dataset(folder, rows, counts, size=size, workers=workers)
