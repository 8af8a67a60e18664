"""Figures of the space that each run has learned; no computation."""

import colorsys
import math
from collections.abc import Callable, Sequence

from divconq.analysis.findings import Findings, Geometry, Map
from divconq.analysis.style import (
    GALLERY,
    QUIET,
    TEST,
    TRAIN,
    Axes,
    Figure,
    bars,
    legend,
    run_colour,
    sheet,
    short,
    whole_numbers,
)

GOLDEN = 0.6180339887  # of a turn of the colour wheel: classes that follow each other differ most


def effective_dimension(findings: Findings) -> Figure | None:
    """Effective dimension of the training images in each run's space, and the mean of its clusters in theirs."""
    rows, means = [], []
    for number, space in enumerate(findings.spaces):
        known = [value for value in space.cluster_dimensions if value is not None]
        if space.train.effective_dimension is not None:
            rows.append((space.name, space.train.effective_dimension, run_colour(number)))
            means.append(sum(known) / len(known) if len(known) > 1 else math.nan)
    if not rows:
        return None
    figure, axes = sheet("Effective dimension of the training images", height=1.35 + 0.4 * len(rows))
    places = range(len(rows))
    whole = axes.scatter([value for _, value, _ in rows], places, c=[colour for _, _, colour in rows], s=34)
    handles, names = [whole], ["all, in the final space"]
    if any(map(math.isfinite, means)):
        parts = axes.scatter(
            means, places, facecolors="none", edgecolors=[colour for _, _, colour in rows], s=34
        )
        handles, names = [*handles, parts], [*names, "mean of clusters"]
        legend(figure, handles, names)
    _rows(axes, [name for name, _, _ in rows])
    highest = max([value for _, value, _ in rows] + [value for value in means if math.isfinite(value)])
    axes.set_xlim(0, max(1.08 * highest, 1))
    whole_numbers(axes.xaxis)
    return figure


def cluster_dimensions(findings: Findings) -> Figure | None:
    """Effective dimension of every cluster of the first run, in its own subspace."""
    if not findings.spaces:
        return None
    values = findings.spaces[0].cluster_dimensions
    if len(values) < 2 or all(value is None for value in values):
        return None
    heights = [math.nan if value is None else value for value in values]
    figure = bars(heights, "Effective dimension of each cluster", xlabel="cluster, in its subspace")
    whole_numbers(figure.axes[0].yaxis)
    return figure


def expected_distances(findings: Findings) -> Figure | None:
    """ED_1 and ED_10 of each run, on train and test, against points spread evenly over the sphere."""
    marks = {"ED₁": lambda points: points.ed1, "ED₁₀": lambda points: points.ed10}
    sphere = (lambda points: points.sphere_ed1, lambda points: points.sphere_ed10)
    return _dots(findings, "Expected distance to the nearest", marks, ("uniform on the sphere", sphere))


def variances(findings: Findings) -> Figure | None:
    """Variance within classes and between them, of each run, on train and test."""
    marks = {"within classes": lambda points: points.intra, "between classes": lambda points: points.inter}
    return _dots(findings, "Variance of the embeddings", marks)


def ratio(findings: Findings) -> Figure | None:
    """Distance to the nearest positive over that to the nearest negative, of each run, on train and test."""
    marks = {"": lambda points: points.ratio}
    return _dots(findings, "Nearest positive over nearest negative", marks)


def map_classes(findings: Findings) -> Figure | None:
    """UMAP of the training images, coloured by class."""
    if findings.map is None or "train" not in findings.map.splits:
        return None
    shown = findings.map
    chosen = [place for place, split in enumerate(shown.splits) if split == "train"]
    colours = [_class_colour(shown.labels[place]) for place in chosen]
    return _scatter(shown, chosen, colours, f"UMAP of {len(chosen)} training images, by class")


def map_splits(findings: Findings) -> Figure | None:
    """UMAP of training and test images together."""
    if findings.map is None or len(set(findings.map.splits)) < 2:
        return None
    shown = findings.map
    colours = {"train": TRAIN, "test": TEST, "gallery": GALLERY}
    figure = _scatter(
        shown,
        list(range(len(shown.points))),
        [colours[split] for split in shown.splits],
        "UMAP of training and test images",
    )
    present = [split for split in colours if split in shown.splits]
    axes = figure.axes[0]
    handles = [axes.scatter([], [], s=20, color=colours[split]) for split in present]
    legend(figure, handles, present, columns=3)
    return figure


def _dots(
    findings: Findings,
    title: str,
    marks: dict[str, Callable[[Geometry], float]],
    reference: tuple[str, Sequence[Callable[[Geometry], float]]] | None = None,
) -> Figure | None:
    """A row for each run and split: a filled and a hollow dot; thin strokes of the same rows for the reference."""
    rows = [
        (number, f"{short(space.name)}, {split}" if len(findings.spaces) > 1 else split, points)
        for number, space in enumerate(findings.spaces)
        for split, points in (("train", space.train), ("test", space.test))
    ]
    known = [value(points) for _, _, points in rows for value in marks.values()]
    if not any(map(math.isfinite, known)):
        return None
    figure, axes = sheet(title, height=1.35 + 0.26 * len(rows))
    colours = [run_colour(number) for number, _, _ in rows]
    handles, names = [], []
    for filled, (name, value) in zip((True, False), marks.items(), strict=False):
        xs = [value(points) for _, _, points in rows]
        faces = colours if filled else "none"
        handles.append(axes.scatter(xs, range(len(rows)), s=34, facecolors=faces, edgecolors=colours))
        names.append(name)
        known += xs
    for value in reference[1] if reference else ():
        xs = [value(points) for _, _, points in rows]
        stroke = axes.scatter(xs, range(len(rows)), marker="|", s=90, color=QUIET, linewidths=1.2)
        known += xs
    if reference:
        handles.append(stroke)
        names.append(reference[0])
    if len(names) > 1:
        legend(figure, handles, names, columns=3)
    _rows(axes, [name for _, name, _ in rows])
    axes.set_xlim(0, max(1.08 * max(value for value in known if math.isfinite(value)), 1e-6))
    return figure


def _rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [short(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(True, axis="both")
    axes.spines["left"].set_visible(False)


def _scatter(shown: Map, chosen: Sequence[int], colours: Sequence[object], title: str) -> Figure:
    """Points in an order that puts no class and no split above the others."""
    import numpy as np

    figure, axes = sheet(title, height=3.7)
    order = np.random.default_rng(0).permutation(len(chosen))
    points = [shown.points[chosen[place]] for place in order]
    xs, ys = zip(*points, strict=True)
    size = min(14.0, max(2.0, 12000 / len(points)))
    axes.scatter(
        xs, ys, s=size, c=[colours[place] for place in order], alpha=0.75, linewidths=0, rasterized=True
    )
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set_aspect("equal", adjustable="datalim")
    return figure


def _class_colour(label: int) -> tuple[float, float, float]:
    return colorsys.hls_to_rgb(label * GOLDEN % 1, 0.52, 0.6)
