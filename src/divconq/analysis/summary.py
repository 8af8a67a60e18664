"""The findings in plain sentences, for the head of the page."""

import math
from collections.abc import Iterator, Sequence

import torch

from divconq.analysis.clusters import FactorTable
from divconq.analysis.findings import Clusters, Errors, Factors, Findings, Space, Subspaces, Training
from divconq.analysis.markup import count, number, percent

WEAK = 0.1  # NMI below which a factor is not worth a sentence


def sentences(findings: Findings) -> dict[str, list[str]]:
    """What was found by topic: search, clusters, subspaces, the space, errors; without topics that have nothing."""
    clusters, subspaces, errors = findings.clusters, findings.subspaces, findings.errors
    found = {
        "Search": [text for run in findings.training[:1] for text in _of_training(run, findings)],
        "Clusters": [] if clusters is None else list(_of_clusters(clusters, findings)),
        "Subspaces": [] if subspaces is None else list(_of_subspaces(subspaces)),
        "Space": [text for space in findings.spaces[:1] for text in _of_space(space)],
        "Errors": [] if errors is None else list(_of_errors(errors)),
    }
    return {topic: said for topic, said in found.items() if said}


def score(run: Training, name: str) -> tuple[float, tuple[int, float]] | None:
    """The last value of a figure, and the epoch and value of its best; None if it was never logged."""
    epochs, values = run.curves.get(name, ((), ()))
    if not epochs:
        return None
    best = max(range(len(values)), key=lambda place: (values[place], -place))
    return values[-1], (epochs[best], values[best])


def strongest(factors: Factors) -> list[tuple[str, float] | None]:
    """For each row the factor of which it says most, and how much; None if that is next to nothing."""
    values = torch.tensor(factors.values, dtype=torch.float64).view(-1, len(factors.names))
    best = FactorTable(factors.names, values).strongest()
    return [item if item is not None and item[1] >= WEAK else None for item in best]


def _of_training(run: Training, findings: Findings) -> Iterator[str]:
    scored = score(run, "recall@1")
    if scored is None:
        yield "No epoch of this run was evaluated, so there is no score yet."
        return
    last, (epoch, best) = scored
    final = run.curves["recall@1"][0][-1]
    text = f"The nearest neighbour of a test image is of its class in {percent(last)} of cases (R@1, epoch {final})"
    yield f"{text}." if epoch == final else f"{text}; the best epoch, {epoch}, reached {percent(best)}."
    others = [(other.name, score(other, "recall@1")) for other in findings.training[1:]]
    for name, theirs in others:
        if theirs is not None:
            yield f"The last epoch is {_difference(last - theirs[0])} that of {name} ({percent(theirs[0])})."
    for at, train, test in run.generalisation[-1:]:
        yield (
            f"On the images it was trained on R@1 is {percent(train)} at epoch {at}: "
            f"{_difference(train - test)} that on test images."
        )


def _of_clusters(clusters: Clusters, findings: Findings) -> Iterator[str]:
    if clusters.divisions:
        last = clusters.divisions[-1]
        times = count(len(clusters.divisions), "time")
        sizes = f"of {min(last.sizes):,} to {max(last.sizes):,} images" if last.sizes else ""
        yield (
            f"The {count(findings.train_images, 'training image')} were divided {times}, in the end into "
            f"K = {last.k} clusters {sizes} (NMI with the classes {number(last.nmi_classes)})."
        )
        empty = sum(size == 0 for size in last.sizes)
        if empty:
            yield f"{count(empty, 'cluster is', 'clusters are')} empty."
    if clusters.split_classes:
        first = clusters.split_classes[0]
        within = sum(share > 0 for share in first.shares)
        yield (
            f"The class that is split most is {first.label}: its {first.images} images are in {within} clusters."
        )
    if clusters.factors is not None:
        yield from _caught(clusters.factors, "cluster")


def _of_subspaces(subspaces: Subspaces) -> Iterator[str]:
    recalls = [value if math.isfinite(value) else -1.0 for value in subspaces.recalls]
    if len(recalls) > 1 and math.isfinite(subspaces.final_recall):
        best = max(range(len(recalls)), key=recalls.__getitem__)
        yield (
            f"The sum of the {len(recalls)} subspaces finds the right class for {percent(subspaces.final_recall)} of "
            f"{count(subspaces.queries, 'query', 'queries')}, {_difference(subspaces.final_recall - recalls[best])} "
            f"the best of them alone (subspace {best + 1}, {percent(recalls[best])})."
        )
        yield (
            f"In {count(subspaces.corrected, 'query', 'queries')} the sum is right although most subspaces are wrong; "
            f"in {subspaces.misled:,} it is the reverse."
        )
    if subspaces.factors is not None:
        yield from _caught(subspaces.factors, "subspace")


def _of_space(space: Space) -> Iterator[str]:
    train, test = space.train, space.test
    if train.effective_dimension is not None:
        yield (
            f"95% of the variance of the training images lies in {train.effective_dimension} of the embedding's "
            f"{train.dim} dimensions."
        )
    if math.isfinite(test.ed10) and math.isfinite(test.sphere_ed10):
        yield (
            f"A test image is {number(test.ed10)} away from its ten nearest on average; spread evenly over the sphere "
            f"it would be {number(test.sphere_ed10)}."
        )


def _of_errors(errors: Errors) -> Iterator[str]:
    parts = []
    if errors.mislabelled:
        parts.append(f"{count(len(errors.mislabelled), 'image')} whose neighbours agree on another class")
    if errors.duplicates:
        parts.append(f"{count(len(errors.duplicates), 'pair')} of near-duplicates")
    if parts:
        yield f"Worth a look in the data, and listed below: {' and '.join(parts)}."
    for pair in errors.confused[:1]:
        yield (
            f"The classes that are confused most are {pair.first} and {pair.second} ({count(pair.count, 'time')})."
        )


def _caught(factors: Factors, word: str) -> Iterator[str]:
    """Which factors the clusters or subspaces caught, the rows of a factor together."""
    rows: dict[str, list[tuple[int, float]]] = {}
    for place, item in enumerate(strongest(factors), 1):
        if item is not None:
            rows.setdefault(item[0], []).append((place, item[1]))
    said = [f"{name} ({_listed(word, [place for place, _ in found])})" for name, found in rows.items()]
    if said:
        low, high = (f([v for found in rows.values() for _, v in found]) for f in (min, max))
        span = number(high) if number(low) == number(high) else f"{number(low)} to {number(high)}"
        yield f"Among the known factors the {word}s follow {', '.join(said)}; NMI {span}."
    elif factors.names:
        yield f"No {word} is close to any of the known factors (all NMI below {WEAK})."


def _listed(word: str, numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"{word} {numbers[0]}"
    return f"{word}s {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def _difference(share: float) -> str:
    """How a share compares with another, in points.

    >>> _difference(0.0312), _difference(-0.5)
    ('3.1 points above', '50.0 points below')
    """
    points = round(100 * share, 1)
    return "the same as" if points == 0 else f"{abs(points):.1f} points {'above' if points > 0 else 'below'}"
