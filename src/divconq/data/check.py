"""What may be wrong with a dataset, found before anything is trained on it."""

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from divconq.data.dataset import Dataset, ImageSet, count_matches
from divconq.data.images.file_kinds import file_kinds
from divconq.data.images.files import Decoded, first_three, read_each


@dataclass(frozen=True)
class Kind:
    """Something to find: how it is called, what it means, and whether training on it would be wrong."""

    title: str
    meaning: str
    wrong: bool = False


OF_LABELS = {
    "singletons": Kind(
        "training classes with one image", "training stops at them; add images or choose --singletons drop"
    ),
    "shared_classes": Kind(
        "test classes that are also training classes",
        "the scores will not tell how classes that were never seen are found",
    ),
    "not_in_gallery": Kind("query classes that are not in the gallery", "they cannot be found"),
    "queries_without_positive": Kind(
        "queries without another image of their class to find",
        "they are left out of the scores; where cameras are known, images by the same camera do not count",
    ),
}
OF_FILES = {
    "unreadable": Kind("unreadable files", "save them again or remove them", wrong=True),
    "truncated": Kind("truncated files", "copy or download them again, or remove them", wrong=True),
    "zero_byte": Kind("files of zero bytes", "copy or download them again, or remove them", wrong=True),
    "not_an_image": Kind("files that are not an image", "remove them", wrong=True),
    "odd_size": Kind(
        "images that are too large, or far longer than wide", "save them smaller or remove them", wrong=True
    ),
    "animated": Kind("files with several frames", "only the first is seen"),
    "cmyk": Kind("CMYK files", "they are converted to RGB, without their colour profile"),
    "sixteen_bit": Kind("files with 16 bits a channel or more", "they are seen in 8 bits"),
    "alpha": Kind("files with transparency", "what is transparent becomes white"),
    "exif_rotated": Kind("files turned by EXIF", "they are seen upright"),
}
OF_DUPLICATES = {
    "duplicates_within_split": Kind("equal images within a split", "one of each would do"),
    "duplicates_train_test": Kind(
        "equal images in train and test", "the scores would be too good; remove them from one", wrong=True
    ),
    "duplicates_query_gallery": Kind(
        "equal images in query and gallery", "the scores will be too good; remove them from one"
    ),
    "duplicates_other_label": Kind("equal images with different labels", "correct the labels"),
}
KINDS: Mapping[str, Kind] = OF_LABELS | OF_FILES | OF_DUPLICATES


@dataclass(frozen=True)
class Split:
    """How many images and classes a split has; ``class_sizes`` counts classes of 1, 2-3, 4-7, ... images."""

    images: int
    classes: int
    singletons: int
    class_sizes: dict[str, int]


@dataclass(frozen=True)
class Finding:
    """How often something was found, and the first three of them."""

    count: int
    examples: list[str]


@dataclass(frozen=True)
class Report:
    """What was found in a dataset: ``problems`` make training wrong, ``warnings`` are good to know.

    ``files`` is how many were read; it is 0 for images in memory, whose ``findings`` are of labels only.
    """

    name: str
    splits: dict[str, Split]
    files: int
    findings: dict[str, Finding]
    problems: list[str]
    warnings: list[str]

    def to_json(self) -> str:
        """All of it as one JSON object.

        >>> Report("photos", {}, 0, {}, [], []).to_json()
        '{"name": "photos", "splits": {}, "files": 0, "findings": {}, "problems": [], "warnings": []}'
        """
        return json.dumps(dataclasses.asdict(self))


@dataclass(frozen=True)
class _Entry:
    """One image of a split that is read from a file."""

    split: str
    path: str
    label: str
    file: Path
    box: tuple[float, ...] | None


def check_dataset(dataset: Dataset, *, workers: int = 4) -> Report:
    """Look for all ``KINDS`` of trouble; ``workers`` threads read every file once.

    A dataset whose files may be broken is opened with ``open_dataset(..., keep_broken=True)``.

    >>> from divconq.data import open_dataset
    >>> report = check_dataset(open_dataset("demo"))
    >>> report.problems, report.splits["test"].classes
    ([], 40)
    """
    splits = _splits(dataset)
    entries = [entry for name, images in splits.items() for entry in _entries(name, images)]
    found = _in_labels(dataset)
    files = list(dict.fromkeys(entry.file for entry in entries))
    if files:
        kinds, digests = _read(files, _of_repeated_size(entries), workers)
        name_of = {entry.file: entry.path for entry in reversed(entries)}
        for kind in OF_FILES:
            found[kind] = [name_of[file] for file in files if kind in kinds[file]]
        found |= _duplicates(entries, digests)
    problems, warnings = _sentences(dataset, found)
    return Report(
        dataset.name,
        {name: _counts(images) for name, images in splits.items()},
        len(files),
        {kind: Finding(len(names), names[:3]) for kind, names in found.items()},
        problems,
        warnings,
    )


def text(report: Report) -> str:
    """The report as a person reads it: the table, then a line for each problem and each warning.

    >>> split = Split(images=4, classes=2, singletons=1, class_sizes={"1": 1, "2-3": 1})
    >>> print(text(Report("photos", {"train": split}, 4, {"cmyk": Finding(0, [])}, [], ["much is grey"])))
    photos               train
    images                   4
    classes                  2
      of 1 image             1
      of 2-3 images          1
    <BLANKLINE>
    files read               4
    CMYK files               0
    <BLANKLINE>
    warning: much is grey
    no problems
    """
    sizes = max((list(split.class_sizes) for split in report.splits.values()), key=len, default=[])
    rows: list[tuple[str, ...]] = [
        (report.name, *report.splits),
        ("images", *(f"{split.images:,}" for split in report.splits.values())),
        ("classes", *(f"{split.classes:,}" for split in report.splits.values())),
        *(
            (
                f"  of {size} image{'' if size == '1' else 's'}",
                *(f"{split.class_sizes.get(size, 0):,}" for split in report.splits.values()),
            )
            for size in sizes
        ),
        (),
        ("files read", f"{report.files:,}") if report.files else ("images are in memory, not in files",),
        *((KINDS[kind].title, f"{finding.count:,}") for kind, finding in report.findings.items()),
    ]
    width = max(18, *(len(row[0]) for row in rows if len(row) > 1))
    table = [
        "".join(cell.ljust(width) if column == 0 else cell.rjust(8) for column, cell in enumerate(row))
        for row in rows
    ]
    problems = [f"problem: {sentence}" for sentence in report.problems]
    warnings = [f"warning: {sentence}" for sentence in report.warnings]
    end = [] if problems else ["no problems"]
    return "\n".join([*(line.rstrip() for line in table), "", *warnings, *problems, *end])


def _splits(dataset: Dataset) -> dict[str, ImageSet]:
    if dataset.gallery is None:
        return {"train": dataset.train, "test": dataset.test}
    return {"train": dataset.train, "query": dataset.test, "gallery": dataset.gallery}


def _entries(split: str, images: ImageSet) -> list[_Entry]:
    """The images that are read from files; none if they are in memory."""
    pixels = images.pixels
    if not isinstance(pixels, Decoded):
        return []
    boxes = [None] * len(images) if pixels.boxes is None else [tuple(box) for box in pixels.boxes.tolist()]
    labels = [images.names[label] for label in images.labels.tolist()]
    return [_Entry(split, *row) for row in zip(images.paths, labels, pixels.files, boxes, strict=True)]


def _counts(images: ImageSet) -> Split:
    sizes = [size for size in images.labels.bincount().tolist() if size]
    by_power = Counter(size.bit_length() - 1 for size in sizes)
    class_sizes = {
        "1" if power == 0 else f"{1 << power}-{(2 << power) - 1}": by_power[power]
        for power in range(max(by_power) + 1)
    }
    return Split(len(images), len(sizes), sizes.count(1), class_sizes)


def _in_labels(dataset: Dataset) -> dict[str, list[str]]:
    train, test, gallery = dataset.train, dataset.test, dataset.gallery
    trained, queried = _classes(train), _classes(test)
    searched = queried if gallery is None else _classes(gallery)
    lonely = count_matches(test, gallery) == 0
    found = {
        "singletons": [train.names[i] for i, n in enumerate(train.labels.bincount().tolist()) if n == 1],
        "shared_classes": sorted(trained & (queried | searched)),
        "queries_without_positive": [test.paths[i] for i in lonely.nonzero().flatten().tolist()],
    }
    return found if gallery is None else found | {"not_in_gallery": sorted(queried - searched)}


def _classes(images: ImageSet) -> set[str]:
    """The names of the classes that have images."""
    return {images.names[label] for label in images.labels.unique().tolist()}


def _of_repeated_size(entries: Sequence[_Entry]) -> set[Path]:
    """The files that may equal others: only files of one size can."""
    sizes = {entry.file: entry.file.stat().st_size if entry.file.is_file() else 0 for entry in entries}
    often = Counter(sizes[entry.file] for entry in entries)
    return {file for file, size in sizes.items() if often[size] > 1}


def _read(
    files: Sequence[Path], hashed: set[Path], workers: int
) -> tuple[dict[Path, tuple[str, ...]], dict[Path, str]]:
    """The kinds of each file, and the digests of those to be hashed that are not broken."""

    def inspect(file: Path) -> tuple[tuple[str, ...], str]:
        kinds = file_kinds(file)
        whole = file in hashed and not any(OF_FILES[kind].wrong for kind in kinds)
        return kinds, hashlib.sha256(file.read_bytes()).hexdigest() if whole else ""

    seen = dict(zip(files, read_each(inspect, files, workers, "reading"), strict=True))
    return (
        {file: kinds for file, (kinds, _) in seen.items()},
        {file: digest for file, (_, digest) in seen.items() if digest},
    )


def _duplicates(entries: Sequence[_Entry], digests: Mapping[Path, str]) -> dict[str, list[str]]:
    """The sets of equal images of each kind; different boxes of one file are different images."""
    alike: dict[tuple[str, tuple[float, ...] | None], list[_Entry]] = {}
    for entry in entries:
        if entry.file in digests:
            alike.setdefault((digests[entry.file], entry.box), []).append(entry)
    found: dict[str, list[str]] = {kind: [] for kind in OF_DUPLICATES}
    for group in alike.values():
        in_split: dict[str, list[str]] = {}
        of_label: dict[str, str] = {}
        for entry in group:
            in_split.setdefault(entry.split, []).append(entry.path)
            of_label.setdefault(entry.label, f"{entry.path} ({entry.label})")
        first = {split: paths[0] for split, paths in in_split.items()}
        found["duplicates_within_split"] += [_equal(paths) for paths in in_split.values() if len(paths) > 1]
        if "train" in first and len(first) > 1:
            found["duplicates_train_test"].append(_equal(list(first.values())))
        if "query" in first and "gallery" in first:
            found["duplicates_query_gallery"].append(_equal([first["query"], first["gallery"]]))
        if len(of_label) > 1:
            found["duplicates_other_label"].append(_equal(list(of_label.values())))
    if all(entry.split != "gallery" for entry in entries):
        del found["duplicates_query_gallery"]
    return found


def _equal(paths: Sequence[str]) -> str:
    return " = ".join(paths[:3]) + (f" = {len(paths) - 3} more" if len(paths) > 3 else "")


def _sentences(dataset: Dataset, found: Mapping[str, Sequence[str]]) -> tuple[list[str], list[str]]:
    """The problems and the warnings."""
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
    for kind, names in found.items():
        if names:
            known = KINDS[kind]
            sentence = f"{known.title}: {len(names):,} ({first_three(names)}); {known.meaning}"
            (problems if known.wrong else warnings).append(sentence)
    return problems, warnings
