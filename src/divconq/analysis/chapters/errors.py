"""Chapter "Errors": failed searches, and images that may be wrong in the data."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from divconq.analysis.chapters.chapter import Chapter
from divconq.analysis.measures.errors import (
    Duplicates,
    confused_pairs,
    first_positive_ranks,
    label_errors,
    near_duplicates,
    worst_queries,
)
from divconq.analysis.measures.nearest import distances, nearest_other, neighbours
from divconq.analysis.study import Study
from divconq.analysis.subject import ANSWERS, Found, ImageRef, Subject
from divconq.analysis.words import count

LISTED = 12  # of each kind


@dataclass(frozen=True)
class Worst:
    """A query whose first positive has a high rank, and the images it found first."""

    query: ImageRef
    rank: int
    found: tuple[Found, ...]


@dataclass(frozen=True)
class Confused:
    """Two classes that find each other: how often, the share of their images, and an image of each."""

    first: str
    second: str
    count: int
    share: float
    examples: tuple[ImageRef, ...]


@dataclass(frozen=True)
class Mislabelled:
    """An image whose neighbours agree on another class."""

    image: ImageRef
    suggested: str
    score: float
    neighbours: tuple[ImageRef, ...]


@dataclass(frozen=True)
class Duplicate:
    """Two images of different classes or splits that are nearly equal."""

    first: ImageRef
    second: ImageRef
    distance: float
    across: Literal["classes", "splits"]


@dataclass(frozen=True)
class Errors:
    """Failed searches, and images that may be wrong in the data."""

    worst: tuple[Worst, ...]
    confused: tuple[Confused, ...]
    mislabelled: tuple[Mislabelled, ...]
    duplicates: tuple[Duplicate, ...]


def compute(study: Study) -> Errors | None:
    """Return the errors of the first run; None if its network cannot be analysed."""
    return None if study.subject is None else errors_of(study.subject)


def errors_of(subject: Subject) -> Errors:
    """Return the worst queries, confused classes, likely label errors and near-duplicates of the test images."""
    return Errors(_worst(subject), _confused(subject), _mislabelled(subject), _duplicates(subject))


def _worst(subject: Subject) -> tuple[Worst, ...]:
    ranks = first_positive_ranks(
        subject.x["test"],
        subject.labels["test"],
        subject.ranking,
        gallery=subject.x.get("gallery"),
        gallery_labels=subject.labels.get("gallery"),
    )
    return tuple(
        Worst(
            subject.ref("test", query),
            int(ranks[query]),
            subject.found(query, subject.ranking[query, :ANSWERS].tolist()),
        )
        for query in worst_queries(ranks, LISTED).tolist()
    )


def _confused(subject: Subject) -> tuple[Confused, ...]:
    labels, names, found = subject.labels["test"], subject.images["test"].names, []
    first_found = subject.labels[subject.searched][subject.ranking[:, :1]].flatten()
    for pair in confused_pairs(subject.ranking, labels, subject.labels.get("gallery"), LISTED):
        forward = (labels == pair.first) & (first_found == pair.second)
        backward = (labels == pair.second) & (first_found == pair.first)
        query = int((forward if forward.any() else backward).nonzero()[0])
        answer = subject.ref(subject.searched, int(subject.ranking[query, 0]))
        examples = (subject.ref("test", query), answer)
        found.append(Confused(names[pair.first], names[pair.second], pair.count, pair.share, examples))
    return tuple(found)


def _mislabelled(subject: Subject) -> tuple[Mislabelled, ...]:
    names = subject.images["test"].names
    return tuple(
        Mislabelled(
            subject.point_ref(error.image),
            names[error.suggested],
            error.score,
            tuple(subject.point_ref(i) for i in subject.near[error.image, :ANSWERS].tolist()),
        )
        for error in label_errors(subject.near, subject.point_labels)[:LISTED]
    )


def _duplicates(subject: Subject) -> tuple[Duplicate, ...]:
    """Return pairs of test images of different classes, then pairs of a test image and a training image."""
    points, trained = subject.points, subject.x["train"]
    index = neighbours(points, 1, gallery=trained)
    distance = distances(points, trained, index)[:, 0]
    between_classes = near_duplicates(*nearest_other(points, subject.point_labels, subject.near))
    between_splits = near_duplicates(len(points) + index[:, 0], distance)
    return (
        *(
            Duplicate(subject.point_ref(a), subject.point_ref(b), distance, "classes")
            for a, b, distance in _listed(between_classes)
        ),
        *(
            Duplicate(subject.point_ref(a), subject.ref("train", b - len(points)), distance, "splits")
            for a, b, distance in _listed(between_splits)
        ),
    )


def _listed(found: Duplicates) -> Iterator[tuple[int, int, float]]:
    for (a, b), distance in zip(found.pairs[:LISTED].tolist(), found.distances.tolist(), strict=False):
        yield a, b, distance


def summary(errors: Errors) -> Iterator[str]:
    """Yield sentences on the number of images to check and the most confused classes."""
    parts = []
    if errors.mislabelled:
        parts.append(f"{count(len(errors.mislabelled), 'image')} whose neighbours agree on another class")
    if errors.duplicates:
        parts.append(f"{count(len(errors.duplicates), 'pair')} of near-duplicates")
    if parts:
        yield f"The list below has {' and '.join(parts)}. Check them in the data."
    for pair in errors.confused[:1]:
        yield f"The most confused classes are {pair.first} and {pair.second} ({count(pair.count, 'time')})."


ERRORS = Chapter(
    name="errors",
    title="Errors",
    template=Path(__file__).with_suffix(".html"),
    compute=compute,
    summary=summary,
)
