"""Where images come from, how they are changed, and in which batches they are drawn."""

from pathlib import Path

import torch
from jaxtyping import Int64
from torch import Tensor

from divconq.checks import did_you_mean
from divconq.data.dataset import Dataset, ImageSet, InMemory, Pixels, subset
from divconq.data.images.files import broken_files_kept
from divconq.data.sources.registry import READERS

__all__ = [
    "Dataset",
    "ImageSet",
    "InMemory",
    "Pixels",
    "drop_singletons",
    "hold_out",
    "is_dataset",
    "open_dataset",
    "subset",
]


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
    """The dataset called ``name``, or the one in the folder or table of that name.

    Names are demo (or demo:1, demo:2, ... with other species) and those of ``READERS``, published benchmarks
    that lie in ``root``. A folder has class folders, a .csv or .parquet file a row for each image. Files that
    are no readable images are refused, unless ``keep_broken`` is set to look at them.

    >>> len(open_dataset("demo").test.names)
    40
    """
    if keep_broken:
        with broken_files_kept():
            return open_dataset(
                name, root=root, size=size, test_classes=test_classes, workers=workers, seed=seed
            )
    if _is_demo(name):
        from divconq.data.sources.demo import demo

        return demo(seed=int(name.partition(":")[2] or 0))
    if name in READERS:
        return READERS[name](root, size=size, workers=workers)
    if name and Path(name).is_dir():
        from divconq.data.sources.folder import folder

        return folder(Path(name), size=size, test_classes=test_classes, workers=workers, seed=seed)
    if _is_table(name):
        from divconq.data.sources.table import read_table

        return read_table(Path(name), size=size, test_classes=test_classes, workers=workers, seed=seed)
    if not name:
        raise ValueError("no data was named; add --data FOLDER, a folder of class folders")
    raise ValueError(
        f"no dataset is called {name!r} and no folder is there; "
        f"name demo, a benchmark or a folder of photos{did_you_mean(name, ('demo', *READERS))}"
    )


def _is_demo(name: str) -> bool:
    kind, colon, seed = name.partition(":")
    return kind == "demo" and (not colon or seed.isdecimal())


def _is_table(name: str) -> bool:
    return Path(name).suffix.lower() in (".csv", ".parquet")


def is_dataset(name: str) -> bool:
    """Whether ``name`` is a dataset with splits, rather than just a folder of images."""
    splits = any((Path(name) / split).is_dir() for split in ("train", "test"))
    return _is_demo(name) or name in READERS or _is_table(name) or splits


def drop_singletons(images: ImageSet) -> ImageSet:
    """Without the classes that have one image only."""
    counts = images.labels.bincount()
    return subset(images, counts[images.labels] > 1)


def hold_out(
    images: ImageSet, classes: int, *, seed: int, whole_groups: bool = False
) -> tuple[ImageSet, ImageSet]:
    """Split off ``classes`` of the classes, drawn by ``seed``: the rest, and those held out.

    With ``whole_groups``, super-categories with all of their classes, as many as fit into that number: no relative of
    a class that is held out stays behind.
    """
    if classes > len(images.names) - 2:
        raise ValueError(
            f"val_classes must leave at least two classes to train on: at most {len(images.names) - 2} of "
            f"{len(images.names)}, got {classes}"
        )
    draw = torch.Generator().manual_seed(seed)
    if whole_groups:
        chosen = _whole_groups(images, classes, draw)
    else:
        chosen = torch.randperm(len(images.names), generator=draw)[:classes]
    held = torch.isin(images.labels, chosen)
    return subset(images, ~held), subset(images, held)


def _whole_groups(images: ImageSet, classes: int, draw: torch.Generator) -> Int64[Tensor, " c"]:
    """All classes of some groups; they are drawn one by one, and each that still fits is taken."""
    if images.groups is None:
        raise ValueError("val_groups needs super-categories, and the data has none; use --no-val-groups")
    group_of = torch.zeros(len(images.names), dtype=torch.int64)
    group_of[images.labels] = images.groups
    names, sizes = group_of.unique(return_counts=True)
    chosen, count = [], 0
    for g in torch.randperm(len(names), generator=draw).tolist():
        if count + int(sizes[g]) <= classes:
            chosen.append(int(names[g]))
            count += int(sizes[g])
    if not chosen:
        raise ValueError(
            f"val_classes must be at least {int(sizes.min())}, the classes of the smallest super-category, to hold out "
            f"a whole one, got {classes}"
        )
    return torch.isin(group_of, torch.tensor(chosen)).nonzero().flatten()
