"""In-shop Clothes Retrieval (DeepFashion): clothes of a shop, searched with other photos of the same piece."""

from collections.abc import Mapping
from pathlib import Path

from divconq.data.dataset import Dataset
from divconq.data.sources.official_layout import Benchmark, Count, Row, below, read_list

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
    """Read In-shop Clothes Retrieval, its images in img/ or Img/img/; the queries are the test images.

    Groups are categories, the folder below WOMEN or MEN: img/WOMEN/Dresses/id_00000002/02_1_front.jpg.

    >>> read_inshop(Path("nowhere"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: --root must be the folder of In-shop Clothes Retrieval or the one that holds it, ...
    """
    folder, (partition,) = INSHOP.find(root)
    above = "" if (folder / "img").is_dir() or not (folder / "Img" / "img").is_dir() else "Img"
    rows: dict[str, list[Row]] = {split: [] for split in COUNTS}
    for path, item, split in _lines(partition):
        if split not in rows:
            raise ValueError(
                f"{partition} must name train, query or gallery, got {split!r} for {path}; download the file again"
            )
        rows[split].append(Row(above, path, item, _category(path)))
    ordered = {split: sorted(mine, key=lambda row: row.label) for split, mine in rows.items()}
    return INSHOP.dataset(folder, ordered, counts, size=size, workers=workers)


def _lines(partition: Path) -> list[tuple[str, str, str]]:
    """Path, item and split of every image, if there are as many as the first line says."""
    lines = read_list(partition, (below, str, str), skip=2)
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
