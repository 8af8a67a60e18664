"""Chapter "The space": the geometry of the final space of every run, on training and test images."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from divconq.analysis.chapters.chapter import Chapter, Plot
from divconq.analysis.drawing import (
    QUIET,
    Figure,
    bars,
    legend,
    name_rows,
    new_figure,
    run_colour,
    short,
    whole_numbers,
)
from divconq.analysis.measures.nearest import distances, nearest_other, nearest_same, neighbours
from divconq.analysis.measures.space import (
    class_variances,
    effective_dimension,
    effective_dimensions,
    expected_distance,
    expected_distance_on_sphere,
    hubness,
    positive_negative_ratio,
)
from divconq.analysis.study import Study
from divconq.analysis.subject import NEIGHBOURS, Subject, sample
from divconq.analysis.words import number

MANY, QUERIES = 20_000, 10_000  # with more than MANY images, a sample of QUERIES searches the others


@dataclass(frozen=True)
class Geometry:
    """One split of one run as a set of points on the unit sphere."""

    images: int
    queries: int  # number of images that searched the others
    dim: int
    effective_dimension: int | None
    intra: float
    inter: float
    ratio: float  # mean of nearest positive over nearest negative
    ed1: float
    ed10: float
    sphere_ed1: float  # for the same number of uniform points on the sphere
    sphere_ed10: float
    hubness: float


@dataclass(frozen=True)
class Space:
    """The final space of one run: train and test geometry, and the dimension of each cluster in its subspace."""

    name: str
    train: Geometry
    test: Geometry
    cluster_dimensions: tuple[int | None, ...]

    def splits(self) -> list[tuple[str, Geometry]]:
        """Return the names of both splits with their geometry."""
        return [("train", self.train), ("test", self.test)]


Spaces: TypeAlias = tuple[Space, ...]


def compute(study: Study) -> Spaces:
    """Return the space of the first run, and of every run with the same test images."""
    if study.subject is None:
        return ()
    spaces = [space_of(study.subject, seed=study.seed)]
    for other in study.others():
        study.say(f"the space of {other.name}")
        spaces.append(space_of(other, thorough=False, seed=study.seed))
    return tuple(spaces)


def space_of(subject: Subject, *, thorough: bool = True, seed: int = 0) -> Space:
    """Return the geometry of both splits, and the dimension of each cluster in its subspace.

    If ``thorough``, every test image searches the others. Other chapters use the result of this search.
    """
    train = geometry(subject.x["train"], subject.labels["train"], seed=seed)
    ranking = subject.near if thorough else None
    test = geometry(subject.points, subject.point_labels, ranking, seed=seed)
    dimensions: list[int | None] = []
    if subject.clusters is not None:
        dimensions = effective_dimensions(subject.f["train"], subject.clusters, subject.masks)
    return Space(subject.name, train, test, tuple(dimensions))


def geometry(
    x: Float[Tensor, "n d"],
    labels: Int64[Tensor, " n"],
    ranking: Int64[Tensor, "n k"] | None = None,
    *,
    many: int = MANY,
    queries: int = QUERIES,
    seed: int = 0,
) -> Geometry:
    """Return the geometry of points on the unit sphere with class labels.

    Neighbour distances, their ratio and hubness need a search. With more than ``many`` points and no ``ranking``, a
    sample of ``queries`` points searches all of them.

    >>> corners = torch.eye(3).repeat_interleave(2, 0)
    >>> found = geometry(corners, torch.tensor([0, 0, 1, 1, 2, 2]))
    >>> found.images, found.ed1, round(found.ratio, 3), found.effective_dimension
    (6, 0.0, 0.0, 2)
    """
    asked = torch.arange(len(x)) if ranking is not None or len(x) <= many else sample(len(x), queries, seed)
    asked = asked.to(x.device)
    found = neighbours(x, NEIGHBOURS, queries=asked) if ranking is None else ranking
    near = distances(x[asked], x, found)
    same, other = nearest_same(x, labels)[1][asked], nearest_other(x, labels, found, queries=asked)[1]
    variances = class_variances(x, labels)
    return Geometry(
        images=len(x),
        queries=len(asked),
        dim=x.shape[1],
        effective_dimension=effective_dimension(x),
        intra=variances.intra,
        inter=variances.inter,
        ratio=positive_negative_ratio(same, other),
        ed1=expected_distance(near, 1),
        ed10=expected_distance(near, 10),
        sphere_ed1=expected_distance_on_sphere(len(x), x.shape[1], 1),
        sphere_ed10=expected_distance_on_sphere(len(x), x.shape[1], 10),
        hubness=hubness(found, len(x), len(x)),
    )


def summary(spaces: Spaces) -> Iterator[str]:
    """Yield sentences on the effective dimension and the neighbour distances of the first run."""
    train, test = spaces[0].train, spaces[0].test
    if train.effective_dimension is not None:
        yield (
            f"{train.effective_dimension} of {train.dim} principal components hold 95% of the variance of the "
            "training images."
        )
    if math.isfinite(test.ed10) and math.isfinite(test.sphere_ed10):
        yield (
            f"The mean distance of a test image to its ten nearest is {number(test.ed10)}; "
            f"for uniform points on the sphere it is {number(test.sphere_ed10)}."
        )


def effective_dimension_figure(spaces: Spaces) -> Figure | None:
    """Draw the effective dimension of the training images of each run, and the mean of its clusters."""
    rows, means = [], []
    for place, space in enumerate(spaces):
        known = [value for value in space.cluster_dimensions if value is not None]
        if space.train.effective_dimension is not None:
            rows.append((space.name, space.train.effective_dimension, run_colour(place)))
            means.append(sum(known) / len(known) if len(known) > 1 else math.nan)
    if not rows:
        return None
    figure, axes = new_figure("Effective dimension of the training images", height=1.35 + 0.4 * len(rows))
    names, values, colours = zip(*rows, strict=True)
    whole = axes.scatter(
        values, range(len(rows)), c=list(colours), s=34
    )  # matplotlib 3.8 reads a tuple of two as colour and alpha
    if any(map(math.isfinite, means)):
        parts = axes.scatter(means, range(len(rows)), facecolors="none", edgecolors=colours, s=34)
        legend(figure, [whole, parts], ["all, in the final space", "mean of clusters"])
    name_rows(axes, names)
    highest = max([*values, *(value for value in means if math.isfinite(value))])
    axes.set_xlim(0, max(1.08 * highest, 1))
    whole_numbers(axes.xaxis)
    return figure


def cluster_dimensions_figure(spaces: Spaces) -> Figure | None:
    """Draw the effective dimension of every cluster of the first run in its subspace."""
    values = spaces[0].cluster_dimensions if spaces else ()
    if len(values) < 2 or all(value is None for value in values):
        return None
    heights = [math.nan if value is None else value for value in values]
    figure = bars(heights, "Effective dimension of each cluster", xlabel="cluster, in its subspace")
    whole_numbers(figure.axes[0].yaxis)
    return figure


def variances_figure(spaces: Spaces) -> Figure | None:
    """Draw the variance within and between classes."""
    marks = {"within classes": lambda points: points.intra, "between classes": lambda points: points.inter}
    return _dots(spaces, "Variance of the embeddings", marks)


def ratio_figure(spaces: Spaces) -> Figure | None:
    """Draw the distance to the nearest positive over the distance to the nearest negative."""
    return _dots(spaces, "Nearest positive over nearest negative", {"": lambda points: points.ratio})


def expected_distances_figure(spaces: Spaces) -> Figure | None:
    """Draw ED_1 and ED_10 of the images and of uniform points on the sphere."""
    marks = {"ED₁": lambda points: points.ed1, "ED₁₀": lambda points: points.ed10}
    sphere = (lambda points: points.sphere_ed1, lambda points: points.sphere_ed10)
    return _dots(spaces, "Expected distance to the nearest", marks, ("uniform on the sphere", sphere))


def _dots(
    spaces: Spaces,
    title: str,
    marks: dict[str, Callable[[Geometry], float]],
    reference: tuple[str, Sequence[Callable[[Geometry], float]]] | None = None,
) -> Figure | None:
    """Draw a row for each run and split, with a filled and a hollow dot; ``reference`` values are thin strokes."""
    rows = [
        (place, f"{short(space.name)}, {split}" if len(spaces) > 1 else split, points)
        for place, space in enumerate(spaces)
        for split, points in space.splits()
    ]
    known = [value(points) for _, _, points in rows for value in marks.values()]
    if not any(map(math.isfinite, known)):
        return None
    figure, axes = new_figure(title, height=1.35 + 0.26 * len(rows))
    colours = [run_colour(place) for place, _, _ in rows]
    handles, names = [], []
    for is_filled, (name, value) in zip((True, False), marks.items(), strict=False):
        xs = [value(points) for _, _, points in rows]
        faces = colours if is_filled else "none"
        handles.append(axes.scatter(xs, range(len(rows)), s=34, facecolors=faces, edgecolors=colours))
        names.append(name)
    for value in reference[1] if reference else ():
        xs = [value(points) for _, _, points in rows]
        stroke = axes.scatter(xs, range(len(rows)), marker="|", s=90, color=QUIET, linewidths=1.2)
        known += xs
    if reference:
        handles.append(stroke)
        names.append(reference[0])
    if len(names) > 1:
        legend(figure, handles, names, columns=3)
    name_rows(axes, [name for _, name, _ in rows])
    axes.set_xlim(0, max(1.08 * max(value for value in known if math.isfinite(value)), 1e-6))
    return figure


SPACES = Chapter(
    name="spaces",
    title="The space",
    template=Path(__file__).with_suffix(".html"),
    compute=compute,
    summary=summary,
    plots={
        "effective-dimension": Plot(
            "Effective dimension of the training images, and the mean of the clusters.",
            effective_dimension_figure,
        ),
        "cluster-dimensions": Plot(
            "Effective dimension of each cluster in its subspace.", cluster_dimensions_figure
        ),
        "variances": Plot("Variance within and between classes.", variances_figure),
        "ratio": Plot(
            "Distance to the nearest positive over the distance to the nearest negative.", ratio_figure
        ),
        "expected-distances": Plot(
            "Expected distance to the nearest and the ten nearest.", expected_distances_figure
        ),
    },
)
