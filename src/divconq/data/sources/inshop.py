"""In-shop Clothes Retrieval (DeepFashion): photos of clothes, with a query set and a gallery."""

from collections.abc import Mapping
from pathlib import Path

from divconq.data.dataset import Dataset
from divconq.data.sources.list_files import read_list, relative_path
from divconq.data.sources.official_layout import Benchmark, Count, Row

INSHOP = Benchmark(
    "inshop",
    "In-shop Clothes Retrieval",
    "https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
    folders=("In-shop Clothes Retrieval Benchmark", "In-shop", "inshop"),
    layouts=(("Eval/list_eval_partition.txt",), ("list_eval_partition.txt",)),
)
COUNTS = {"train": Count(3_997, 25_882), "query": Count(3_985, 14_218), "gallery": Count(3_985, 12_612)}


def read_inshop(
    root: Path | None, *, size: int = 256, workers: int = 4, counts: Mapping[str, Count] = COUNTS
) -> Dataset:
    """Read In-shop Clothes Retrieval, with images in img/ or Img/img/. The queries are the test images.

    Groups are categories, the folder below WOMEN or MEN: Dresses for
    img/WOMEN/Dresses/id_00000002/02_1_front.jpg.

    >>> read_inshop(Path("nowhere"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: --root must be the folder of In-shop Clothes Retrieval or the one that contains it, ...
    """
    folder, (partition,) = INSHOP.find(root)
    above = "" if (folder / "img").is_dir() or not (folder / "Img" / "img").is_dir() else "Img"
    rows: dict[str, list[Row]] = {split: [] for split in COUNTS}
    for path, item, split in _lines(partition):
        if split not in rows:
            raise ValueError(
                f"{partition} must say train, query or gallery, got {split!r} for {path}; download the file again"
            )
        rows[split].append(Row(above, path, item, _category(path)))
    ordered = {split: sorted(part, key=lambda row: row.label) for split, part in rows.items()}
    return INSHOP.dataset(folder, ordered, counts, size=size, workers=workers)


def _lines(partition: Path) -> list[tuple[str, str, str]]:
    """Return path, item and split of each image; the first line must give their number."""
    lines = read_list(partition, (relative_path, str, str), skip=2)
    with partition.open(encoding="utf-8-sig", errors="replace") as file:
        declared = file.readline().strip()
    if declared != str(len(lines)):
        raise ValueError(
            f"line 1 of {partition} must be the number of its images, got {declared!r} for {len(lines)}; "
            "download the file again"
        )
    return lines


def _category(path: str) -> str:
    parts = path.split("/")
    if len(parts) < 4:
        raise ValueError(
            f"every path must be like img/WOMEN/Dresses/id_00000002/02_1_front.jpg, got {path!r}; "
            f"get the list from {INSHOP.url}"
        )
    return parts[2]
