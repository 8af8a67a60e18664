"""Stanford Online Products: products for sale, with a few photos of each."""

from collections.abc import Mapping
from pathlib import Path

from divconq.data.dataset import Dataset
from divconq.data.sources.list_files import read_list, relative_path
from divconq.data.sources.official_layout import Benchmark, Count, Row

SOP = Benchmark(
    "sop",
    "Stanford Online Products",
    "https://cvgl.stanford.edu/projects/lifted_struct/",
    folders=("Stanford_Online_Products",),
    layouts=(("Ebay_train.txt", "Ebay_test.txt"),),
)
COUNTS = {"train": Count(11_318, 59_551), "test": Count(11_316, 60_502)}


def read_sop(
    root: Path | None, *, size: int = 256, workers: int = 4, counts: Mapping[str, Count] = COUNTS
) -> Dataset:
    """Read Stanford Online Products. Groups are its super-classes, such as bicycles and chairs.

    >>> read_sop(Path("nowhere"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: --root must be the folder of Stanford Online Products or the one that contains it, ...
    """
    folder, (train, test) = SOP.find(root)
    splits = {"train": _rows(train), "test": _rows(test)}
    return SOP.dataset(folder, splits, counts, size=size, workers=workers)


def _rows(file: Path) -> list[Row]:
    lines = read_list(file, (int, int, int, relative_path), skip=1)
    return [Row("", path, str(product), f"{kind:02d}") for _, product, kind, path in lines]
