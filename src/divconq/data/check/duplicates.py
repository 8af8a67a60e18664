"""Equal images within a split and across splits."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from divconq.data.check.kinds import DUPLICATE_KINDS
from divconq.data.images.identity import file_identities


@dataclass(frozen=True)
class Entry:
    """One image of a split, with its file."""

    split: str
    path: str
    label: str
    file: Path
    box: tuple[float, ...] | None


def possible_duplicates(entries: Sequence[Entry]) -> set[Path]:
    """Return the files that may equal another one because both have the same size."""
    sizes = {entry.file: entry.file.stat().st_size if entry.file.is_file() else 0 for entry in entries}
    count = Counter(sizes[entry.file] for entry in entries)
    return {file for file, size in sizes.items() if count[size] > 1}


def find_duplicates(entries: Sequence[Entry], digests: Mapping[Path, str]) -> dict[str, list[str]]:
    """Return the groups of equal images of each kind; two boxes of one file are two images."""
    groups: dict[tuple[str, tuple[float, ...] | None], list[Entry]] = {}
    for entry in entries:
        if entry.file in digests:
            groups.setdefault((digests[entry.file], entry.box), []).append(entry)
    found: dict[str, list[str]] = {kind: [] for kind in DUPLICATE_KINDS}
    for group in groups.values():
        in_split: dict[str, list[str]] = {}
        of_label: dict[str, str] = {}
        for entry in group:
            in_split.setdefault(entry.split, []).append(entry.path)
            of_label.setdefault(entry.label, f"{entry.path} ({entry.label})")
        first = {split: paths[0] for split, paths in in_split.items()}
        found["duplicates_within_split"] += [
            _equation(paths) for paths in in_split.values() if len(paths) > 1
        ]
        if "train" in first and len(first) > 1:
            found["duplicates_train_test"].append(_equation(list(first.values())))
        if "query" in first and "gallery" in first:
            found["duplicates_query_gallery"].append(_equation([first["query"], first["gallery"]]))
        if len(of_label) > 1:
            kind = "links_other_label" if _linked(group) else "duplicates_other_label"
            found[kind].append(_equation(list(of_label.values())))
    if all(entry.split != "gallery" for entry in entries):
        del found["duplicates_query_gallery"]
    return found


def _linked(group: Sequence[Entry]) -> bool:
    """Return whether two entries with different labels are the same file."""
    labels: dict[Hashable, set[str]] = {}
    for entry, file in zip(group, file_identities([entry.file for entry in group], workers=1), strict=True):
        labels.setdefault(file, set()).add(entry.label)
    return any(len(found) > 1 for found in labels.values())


def _equation(paths: Sequence[str]) -> str:
    return " = ".join(paths[:3]) + (f" = {len(paths) - 3} more" if len(paths) > 3 else "")
