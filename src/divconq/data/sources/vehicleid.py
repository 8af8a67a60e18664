"""PKU VehicleID: vehicles in photos of traffic cameras, with test sets of three sizes."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from divconq.data.dataset import Dataset
from divconq.data.sources.list_files import read_list, relative_path
from divconq.data.sources.official_layout import Benchmark, Count, Row

LISTS = ("train_list.txt", "test_list_800.txt", "test_list_1600.txt", "test_list_2400.txt")
VEHICLEID = Benchmark(
    "vehicleid",
    "PKU VehicleID",
    "https://pkuml.org/resources/pku-vehicleid.html",
    folders=("VehicleID_V1.0", "VehicleID"),
    layouts=(tuple(f"train_test_split/{name}" for name in LISTS),),
)
# The number of images differs between the released lists and the publication.
COUNTS = {"train": Count(13_164), "800": Count(800), "1600": Count(1_600), "2400": Count(2_400)}
GALLERY_DRAWS = 10


def read_vehicleid(
    root: Path | None,
    *,
    test: Literal["800", "1600", "2400"] = "2400",
    size: int = 256,
    workers: int = 4,
    counts: Mapping[str, Count] = COUNTS,
) -> Dataset:
    """Read PKU VehicleID with the small, medium or large ``test`` set, whose images search each other.

    In addition, ten random galleries with one image per vehicle are searched by all other images.

    >>> read_vehicleid(Path("nowhere"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: --root must be the folder of PKU VehicleID or the one that contains it, got nowhere, ...
    """
    folder, lists = VEHICLEID.find(root)
    file_of = dict(zip(COUNTS, lists, strict=True))
    splits = {"train": _rows(file_of["train"]), "test": _rows(file_of[test])}
    expected = {"train": counts["train"], "test": counts[test]}
    data = VEHICLEID.dataset(folder, splits, expected, size=size, workers=workers)
    return replace(data, gallery_draws=GALLERY_DRAWS)


def _rows(file: Path) -> list[Row]:
    lines = sorted(read_list(file, (relative_path, int)), key=lambda line: line[1])
    return [Row("image", f"{image}.jpg", str(vehicle)) for image, vehicle in lines]
