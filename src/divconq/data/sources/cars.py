"""CARS196: car models; the first half is for training."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from divconq.data.dataset import Dataset
from divconq.data.sources.list_files import look_up, relative_path
from divconq.data.sources.official_layout import Benchmark, Count, Row

CARS = Benchmark(
    "cars",
    "CARS196",
    "https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
    folders=("cars196", "CARS196", "cars", "stanford_cars"),
    layouts=(
        ("cars_annos.mat",),
        ("devkit/cars_meta.mat", "devkit/cars_train_annos.mat", "devkit/cars_test_annos_withlabels.mat"),
        ("devkit/cars_meta.mat", "devkit/cars_train_annos.mat", "cars_test_annos_withlabels.mat"),
    ),
)
COUNTS = {"train": Count(98, 8_054), "test": Count(98, 8_131)}
BODIES = ("Cab", "Convertible", "Coupe", "Hatchback", "Minivan", "Sedan", "SUV", "Van", "Wagon")


def read_cars(
    root: Path | None, *, size: int = 256, workers: int = 4, counts: Mapping[str, Count] = COUNTS
) -> Dataset:
    """Read CARS196, from one list or from the two lists of the devkit. Classes 1 to 98 are for training.

    Groups are body types: the word before the year if it is one of ``BODIES``, else "other".

    >>> read_cars(Path("nowhere"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: --root must be the folder of CARS196 or the one that contains it, got nowhere, where 1 of 1 ...
    """
    folder, lists = CARS.find(root)
    if len(lists) == 1:
        cars = _annotations(lists[0], "relative_im_path", "")
    else:
        cars = _annotations(lists[1], "fname", "cars_train") + _annotations(lists[2], "fname", "cars_test")
    cars.sort(key=lambda car: car[0])
    names = look_up([number for number, *_ in cars], _class_names(lists[0]), lists[0])
    rows: dict[str, list[Row]] = {"train": [], "test": []}
    for (number, subfolder, path), name in zip(cars, names, strict=True):
        split = "train" if number <= counts["train"].classes else "test"
        rows[split].append(Row(subfolder, path, name, _body(name)))
    return CARS.dataset(folder, rows, counts, size=size, workers=workers)


def _annotations(file: Path, path_field: str, folder: str) -> list[tuple[int, str, str]]:
    """Return class, folder and path of each image of a list."""
    annotations = _variable(file, "annotations")
    missing = {path_field, "class"} - set(annotations.dtype.names or ())
    if missing:
        raise ValueError(
            f"the annotations of {file} must have the field {min(missing)!r}, got none; get it from {CARS.url}"
        )
    cars = []
    for position, car in enumerate(annotations.flat, 1):
        try:
            cars.append((int(car["class"].item()), folder, relative_path(str(car[path_field].item()))))
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(
                f"annotation {position} of {file} must have a number as class and a path, got {error}; "
                f"get it from {CARS.url}"
            ) from error
    return cars


def _class_names(file: Path) -> dict[int, str]:
    names = _variable(file, "class_names").flat
    return {number: str(name.item()) for number, name in enumerate(names, 1)}


def _variable(file: Path, name: str) -> np.ndarray:
    from scipy.io import loadmat

    try:
        return np.asarray(loadmat(str(file), variable_names=[name])[name])
    except Exception as error:  # a damaged file raises many kinds of errors
        raise ValueError(
            f"{file} must be a MATLAB file with {name!r}, got {type(error).__name__} ({error}); "
            f"get it from {CARS.url}"
        ) from error


def _body(name: str) -> str:
    words = name.split()
    return words[-2] if len(words) > 1 and words[-2] in BODIES else "other"
