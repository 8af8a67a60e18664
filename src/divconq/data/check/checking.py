"""Check the labels and files of a dataset."""

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from divconq.data.check.duplicates import Entry, find_duplicates, possible_duplicates
from divconq.data.check.file_kinds import kinds_of_file
from divconq.data.check.kinds import FILE_KINDS, KINDS
from divconq.data.check.report import Finding, Report, Split
from divconq.data.dataset import Dataset, ImageSet, count_matches
from divconq.data.images.file_checks import first_three, map_files
from divconq.data.images.files import ImageFiles


def check_dataset(dataset: Dataset, *, workers: int = 4) -> Report:
    """Return a report on all ``KINDS`` of findings in a dataset. ``workers`` processes read every file once.

    To check broken files, open the dataset with ``open_dataset(..., keep_broken=True)``.

    >>> from divconq.data import open_dataset
    >>> report = check_dataset(open_dataset("demo"))
    >>> report.problems, report.splits["test"].classes
    ([], 40)
    """
    splits = _splits(dataset)
    entries = [entry for name, images in splits.items() for entry in _entries(name, images)]
    found = _check_labels(dataset)
    files = list(dict.fromkeys(entry.file for entry in entries))
    if files:
        kinds, digests = _read(files, possible_duplicates(entries), workers)
        name_of = {entry.file: entry.path for entry in reversed(entries)}
        for kind in FILE_KINDS:
            found[kind] = [name_of[file] for file in files if kind in kinds[file]]
        found |= find_duplicates(entries, digests)
    problems, warnings = _sentences(dataset, found)
    return Report(
        dataset.name,
        {name: _count(images) for name, images in splits.items()},
        len(files),
        {kind: Finding(len(names), names[:3]) for kind, names in found.items()},
        problems,
        warnings,
    )


def _splits(dataset: Dataset) -> dict[str, ImageSet]:
    if dataset.gallery is None:
        return {"train": dataset.train, "test": dataset.test}
    return {"train": dataset.train, "query": dataset.test, "gallery": dataset.gallery}


def _entries(split: str, images: ImageSet) -> list[Entry]:
    """Return the images that are read from files; none if they are in memory."""
    store = images.store
    if not isinstance(store, ImageFiles):
        return []
    boxes = [None] * len(images) if store.boxes is None else [tuple(box) for box in store.boxes.tolist()]
    labels = [images.names[label] for label in images.labels.tolist()]
    return [Entry(split, *row) for row in zip(images.paths, labels, store.files, boxes, strict=True)]


def _count(images: ImageSet) -> Split:
    sizes = [size for size in images.labels.bincount().tolist() if size]
    by_power = Counter(size.bit_length() - 1 for size in sizes)
    class_sizes = {
        "1" if power == 0 else f"{1 << power}-{(2 << power) - 1}": by_power[power]
        for power in range(max(by_power) + 1)
    }
    return Split(len(images), len(sizes), sizes.count(1), class_sizes)


def _check_labels(dataset: Dataset) -> dict[str, list[str]]:
    train, test, gallery = dataset.train, dataset.test, dataset.gallery
    trained, queried = _class_names(train), _class_names(test)
    searched = queried if gallery is None else _class_names(gallery)
    without_positive = (count_matches(test, gallery) == 0).nonzero().flatten().tolist()
    found = {
        "singletons": [train.names[i] for i, n in enumerate(train.labels.bincount().tolist()) if n == 1],
        "shared_classes": sorted(trained & (queried | searched)),
        "similar_names": _similar(trained | queried | searched),
        "queries_without_positive": [test.paths[i] for i in without_positive],
    }
    return found if gallery is None else found | {"not_in_gallery": sorted(queried - searched)}


def _class_names(images: ImageSet) -> set[str]:
    """Return the names of the classes that have images."""
    return {images.names[label] for label in images.labels.unique().tolist()}


def _similar(names: set[str]) -> list[str]:
    """Return the groups of names that are equal apart from case, spaces and the Unicode form of a letter."""
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        plain = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
        groups.setdefault(plain, []).append(ascii(name))
    return [" = ".join(group) for group in groups.values() if len(group) > 1]


def _read(
    files: Sequence[Path], hashed: set[Path], workers: int
) -> tuple[dict[Path, tuple[str, ...]], dict[Path, str]]:
    """Return the kinds of each file, and the digest of each file in ``hashed`` that is not broken."""

    def inspect(file: Path) -> tuple[tuple[str, ...], str]:
        kinds = kinds_of_file(file)
        intact = not any(FILE_KINDS[kind].problem for kind in kinds)
        return kinds, hashlib.sha256(file.read_bytes()).hexdigest() if file in hashed and intact else ""

    results = dict(zip(files, map_files(inspect, files, workers, "reading"), strict=True))
    return (
        {file: kinds for file, (kinds, _) in results.items()},
        {file: digest for file, (_, digest) in results.items() if digest},
    )


def _sentences(dataset: Dataset, found: Mapping[str, Sequence[str]]) -> tuple[list[str], list[str]]:
    """Return the problems and the warnings."""
    problems: list[str] = []
    warnings: list[str] = []
    pairs = int((dataset.train.labels.bincount() > 1).sum())
    if pairs < 2:
        problems.append(
            f"train must have at least two classes with two images or more, got {pairs}; add images"
        )
    if not count_matches(dataset.test, dataset.gallery).any():
        problems.append(
            "no query has an image of its class by another camera to find, so nothing can be scored; add test "
            "images by other cameras, or train with --same-camera keep"
            if count_matches(dataset.test, dataset.gallery, same_camera="keep").any()
            else "no query has an image of its class to find, so nothing can be scored; add test images"
        )
    for name, examples in found.items():
        if examples:
            kind = KINDS[name]
            sentence = f"{kind.title}: {len(examples):,} ({first_three(examples)}); {kind.meaning}"
            (problems if kind.problem else warnings).append(sentence)
    return problems, warnings
