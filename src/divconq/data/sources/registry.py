"""Datasets by name: the published benchmarks, the demo, a folder or a table."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

from divconq.checks import did_you_mean
from divconq.data.dataset import Dataset
from divconq.data.images.sizes import keep_broken_files
from divconq.data.sources.cars import read_cars
from divconq.data.sources.cub import read_cub
from divconq.data.sources.demo import demo_dataset
from divconq.data.sources.folder import read_folder
from divconq.data.sources.inshop import read_inshop
from divconq.data.sources.omniglot import read_omniglot
from divconq.data.sources.sop import read_sop
from divconq.data.sources.table import read_table
from divconq.data.sources.vehicleid import read_vehicleid


class Reader(Protocol):
    """A function that reads one benchmark from ``root``, or from a folder in ``root`` that has its name."""

    def __call__(self, root: Path | None, *, size: int = 256, workers: int = 4) -> Dataset:
        """Return the dataset, or raise a ValueError that names the missing files and where to get them."""
        ...


READERS: Mapping[str, Reader] = {
    "cub": read_cub,
    "cars": read_cars,
    "sop": read_sop,
    "inshop": read_inshop,
    "vehicleid": read_vehicleid,
    "vehicleid:800": partial(read_vehicleid, test="800"),
    "vehicleid:1600": partial(read_vehicleid, test="1600"),
    "vehicleid:2400": partial(read_vehicleid, test="2400"),
    "omniglot": read_omniglot,
}


def open_dataset(
    name: str,
    *,
    root: Path | None = None,
    size: int = 256,
    test_classes: float = 0.5,
    workers: int = 4,
    seed: int = 0,
    keep_broken: bool = False,
) -> Dataset:
    """Open a dataset by name, or from a folder or table of photos.

    ``name`` is one of: ``demo`` (or ``demo:1``, ``demo:2``, ... with other species); a benchmark of ``READERS``,
    stored in ``root``; a folder with one folder per class; a .csv or .parquet file with one row per image.
    Unreadable image files raise a ValueError. With ``keep_broken`` they do not, so that ``check_dataset`` can
    list them.

    >>> len(open_dataset("demo").test.names)
    40
    """
    if keep_broken:
        with keep_broken_files():
            return open_dataset(
                name, root=root, size=size, test_classes=test_classes, workers=workers, seed=seed
            )
    if _is_demo(name):
        return demo_dataset(seed=int(name.partition(":")[2] or 0))
    if name in READERS:
        return READERS[name](root, size=size, workers=workers)
    if name and (Path(name).is_dir() or _is_table(name)):
        read = read_folder if Path(name).is_dir() else read_table
        return read(Path(name), size=size, test_classes=test_classes, workers=workers, seed=seed)
    if not name:
        raise ValueError("no data was named; add --data FOLDER, a folder of class folders")
    raise ValueError(
        f"no dataset is called {name!r} and no folder of that name exists; "
        f"name demo, a benchmark or a folder of photos{did_you_mean(name, ('demo', *READERS))}"
    )


def is_dataset(name: str) -> bool:
    """Return whether ``name`` is a dataset with splits, and not only a folder of images."""
    has_splits = any((Path(name) / split).is_dir() for split in ("train", "test"))
    return _is_demo(name) or name in READERS or _is_table(name) or has_splits


def _is_demo(name: str) -> bool:
    kind, colon, seed = name.partition(":")
    return kind == "demo" and (not colon or seed.isdecimal())


def _is_table(name: str) -> bool:
    return Path(name).suffix.lower() in (".csv", ".parquet")
