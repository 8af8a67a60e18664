"""A chapter of a study: where search fails, and what may be wrong with the data."""

from divconq.analysis.errors import (
    confused_pairs,
    first_positive_ranks,
    label_errors,
    near_duplicates,
    worst_queries,
)
from divconq.analysis.findings import Confused, Duplicate, Errors, Mislabelled, Worst
from divconq.analysis.nearest import distances, nearest_other, neighbours
from divconq.analysis.subject import ANSWERS, Subject

LISTED = 12  # of each kind


def errors_of(subject: Subject) -> Errors:
    """The worst queries, confused classes, likely label errors and near-duplicates of the test images."""
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
            subject.show("test", query),
            int(ranks[query]),
            subject.found(query, subject.ranking[query, :ANSWERS].tolist()),
        )
        for query in worst_queries(ranks, LISTED).tolist()
    )


def _confused(subject: Subject) -> tuple[Confused, ...]:
    labels, searched = subject.labels["test"], subject.labels[subject.searched]
    names, found = subject.images["test"].names, []
    for pair in confused_pairs(subject.ranking, labels, subject.labels.get("gallery"), LISTED):
        theirs = searched[subject.ranking[:, 0]]
        there = (labels == pair.first) & (theirs == pair.second)
        back = (labels == pair.second) & (theirs == pair.first)
        query = int((there if there.any() else back).nonzero()[0])
        examples = (
            subject.show("test", query),
            subject.show(subject.searched, int(subject.ranking[query, 0])),
        )
        found.append(Confused(names[pair.first], names[pair.second], pair.count, pair.share, examples))
    return tuple(found)


def _mislabelled(subject: Subject) -> tuple[Mislabelled, ...]:
    names = subject.images["test"].names
    return tuple(
        Mislabelled(
            subject.show_point(error.image),
            names[error.suggested],
            error.score,
            tuple(subject.show_point(i) for i in subject.near[error.image, :ANSWERS].tolist()),
        )
        for error in label_errors(subject.near, subject.point_labels)[:LISTED]
    )


def _duplicates(subject: Subject) -> tuple[Duplicate, ...]:
    """Those of other classes among the points, then those between the points and the training images."""
    pairs = near_duplicates(*nearest_other(subject.points, subject.point_labels, subject.near))
    found = [
        Duplicate(subject.show_point(a), subject.show_point(b), distance, "classes")
        for (a, b), distance in zip(
            pairs.pairs[:LISTED].tolist(), pairs.distances[:LISTED].tolist(), strict=True
        )
    ]
    trained, tests = subject.x["train"], len(subject.points)
    index = neighbours(subject.points, 1, gallery=trained)
    distance = distances(subject.points, trained, index)[:, 0]
    pairs = near_duplicates(tests + index[:, 0], distance)
    found += [
        Duplicate(subject.show_point(a), subject.show("train", b - tests), distance, "splits")
        for (a, b), distance in zip(
            pairs.pairs[:LISTED].tolist(), pairs.distances[:LISTED].tolist(), strict=True
        )
    ]
    return tuple(found)
