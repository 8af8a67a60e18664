"""Figures of the clusters and of the subspaces; no computation."""

import math
from collections.abc import Sequence

from divconq.analysis.findings import DivisionStep, Factors, Findings
from divconq.analysis.style import (
    FEW,
    INK,
    PAPER,
    QUIET,
    WIDE,
    WIDTH,
    Axes,
    Figure,
    bars,
    cluster_colour,
    heat_map,
    legend,
    sheet,
    short,
    whole_numbers,
)


def cluster_nmi(findings: Findings) -> Figure | None:
    """NMI of each division with the classes, and with the division before."""
    steps = findings.clusters.divisions if findings.clusters else ()
    return _over_divisions(
        steps,
        "NMI of each division",
        {
            "with the classes": [step.nmi_classes for step in steps],
            "with the one before": [step.nmi_previous for step in steps],
        },
    )


def cluster_kept(findings: Findings) -> Figure | None:
    """The share of images that kept their cluster at each division."""
    steps = findings.clusters.divisions if findings.clusters else ()
    kept = [100 * step.kept for step in steps]
    return _over_divisions(steps, "Images that kept their cluster, %", {"": kept}, top=100)


def cluster_sizes(findings: Findings) -> Figure | None:
    """The sizes at every division, stacked: children stand where their parent stood, the first in its colour."""
    if findings.clusters is None or not findings.clusters.divisions:
        return None
    steps = findings.clusters.divisions
    final = steps[-1].k
    figure, axes = sheet("Images in each cluster")
    rasterized = sum(step.k for step in steps) > 400
    for place, step in enumerate(steps):
        below = 0
        for number, size in enumerate(step.sizes):
            descendant = number * final // step.k if step.k <= final else number
            axes.bar(
                place,
                size,
                bottom=below,
                width=0.86,
                color=cluster_colour(descendant),
                edgecolor=PAPER,
                linewidth=0.5,
                rasterized=rasterized,
            )
            below += size
    if final <= FEW:
        _number_segments(axes, len(steps) - 1, steps[-1].sizes)
    every = math.ceil(len(steps) / 8)
    axes.set_xticks(range(0, len(steps), every), [str(step.epoch) for step in steps[::every]])
    axes.set_xlim(-0.6, max(len(steps), 3) - 0.4)
    axes.set_xlabel("division after epoch")
    return figure


def cluster_mean_sizes(findings: Findings) -> Figure | None:
    """Mean size of each cluster over the divisions into the final K, with the deviation."""
    if findings.clusters is None or not findings.clusters.mean_size:
        return None
    return bars(
        findings.clusters.mean_size,
        "Mean size over divisions, ± deviation",
        xlabel="cluster",
        deviation=findings.clusters.deviation,
    )


def cluster_factors(findings: Findings) -> Figure | None:
    """What each cluster says of each known factor."""
    factors = findings.clusters.factors if findings.clusters else None
    return _factors(factors, "cluster")


def masks(findings: Findings) -> Figure | None:
    """The masks, their columns sorted so that a mask's own dimensions stand together."""
    import numpy as np

    if findings.subspaces is None or not findings.subspaces.masks:
        return None
    weights = np.array(findings.subspaces.masks, dtype=float)
    k, dimensions = weights.shape
    owner = weights.argmax(0)
    order = np.lexsort((-weights.max(0), owner))
    figure, axes = sheet(
        f"Masks: {dimensions} dimensions, sorted by the mask in which they weigh most",
        width=WIDE,
        height=min(1.0 + 0.26 * k, 4.2),
    )
    heat_map(axes, weights[:, order].tolist(), top=float(np.nanmax(weights)), written=None)
    axes.tick_params(length=0)
    _number_rows(axes, k)
    axes.set_ylabel("mask")
    axes.set_xticks([])
    for border in np.flatnonzero(np.diff(owner[order])) + 1:
        axes.axvline(border, color=QUIET, linewidth=0.5)
    return figure


def mask_cosine(findings: Findings) -> Figure | None:
    """Cosine similarity of each pair of masks."""
    if findings.subspaces is None or len(findings.subspaces.cosine) < 2:
        return None
    return _pairs(findings.subspaces.cosine, "Cosine of each pair of masks", top=1.0, digits=2)


def mask_shared(findings: Findings) -> Figure | None:
    """How many dimensions each pair of masks shares."""
    if findings.subspaces is None or len(findings.subspaces.shared) < 2:
        return None
    shared = findings.subspaces.shared
    return _pairs(shared, "Active dimensions in common", top=max(map(max, shared)), digits=0)


def mask_mass(findings: Findings) -> Figure | None:
    """The L1 mass of each mask."""
    if findings.subspaces is None or len(findings.subspaces.mass) < 2:
        return None
    return bars(findings.subspaces.mass, "L1 mass of each mask", xlabel="mask")


def subspace_recall(findings: Findings) -> Figure | None:
    """Recall@1 of each subspace alone, and of the sum."""
    if findings.subspaces is None or len(findings.subspaces.recalls) < 2:
        return None
    found = findings.subspaces
    figure = bars([100 * value for value in found.recalls], "Recall@1 of each alone, %", xlabel="subspace")
    if math.isfinite(found.final_recall):
        axes, total = figure.axes[0], 100 * found.final_recall
        axes.axhline(total, color=INK, linewidth=1.2)
        axes.annotate(
            f"sum {total:.1f}",
            (1, total),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="right",
            fontsize=8,
        )
        highest = max([total, *(100 * value for value in found.recalls if math.isfinite(value))])
        axes.set_ylim(0, max(1.15 * highest, 1e-3))
    return figure


def subspace_factors(findings: Findings) -> Figure | None:
    """What each subspace says of each known factor."""
    factors = findings.subspaces.factors if findings.subspaces else None
    return _factors(factors, "subspace")


def _over_divisions(
    steps: Sequence[DivisionStep], title: str, lines: dict[str, list[float]], top: float = 1.0
) -> Figure | None:
    lines = {name: values for name, values in lines.items() if any(map(math.isfinite, values))}
    if not lines:
        return None
    figure, axes = sheet(title)
    handles = []
    for colour, dashes, values in zip((INK, QUIET), ("-", "--"), lines.values(), strict=False):
        (line,) = axes.plot(
            [step.epoch for step in steps], values, marker="o", markersize=3, color=colour, linestyle=dashes
        )
        handles.append(line)
    axes.set_ylim(0, 1.05 * top)
    axes.set_xlabel("division after epoch")
    whole_numbers(axes.xaxis)
    if len(lines) > 1:
        legend(figure, handles, list(lines))
    return figure


def _number_segments(axes: Axes, place: int, sizes: Sequence[int]) -> None:
    """Number the clusters in the bar at a place; one that is too thin for its number goes without."""
    below = 0
    for number, size in enumerate(sizes, 1):
        if size > 0.06 * sum(sizes):
            axes.text(place, below + size / 2, str(number), ha="center", va="center", color=PAPER, fontsize=8)
        below += size


def _factors(factors: Factors | None, rows: str) -> Figure | None:
    if factors is None or not factors.names or not factors.values:
        return None
    k, columns = len(factors.values), len(factors.names)
    finite = [value for row in factors.values for value in row if math.isfinite(value)]
    wide = columns > 6
    figure, axes = sheet(
        f"What each {rows} says of each factor, NMI",
        width=WIDE if wide else WIDTH,
        height=min(1.5 + 0.24 * k, 5.4),
    )
    least = 0.05 if wide else 0.0  # among many numbers only those that say something

    def written(value: float) -> str:
        return f"{value:.2f}".lstrip("0") if value >= least else ""

    heat_map(axes, factors.values, top=max([0.25, *finite]), written=written)
    axes.set_xticks(
        [column + 0.5 for column in range(columns)],
        [short(name) for name in factors.names],
        rotation=35,
        ha="right",
        rotation_mode="anchor",
    )
    _number_rows(axes, k)
    axes.set_ylabel(rows)
    return figure


def _pairs(values: Sequence[Sequence[float]], title: str, *, top: float, digits: int) -> Figure:
    k = len(values)
    figure, axes = sheet(title, height=2.9)
    heat_map(axes, values, top=top, written=lambda value: f"{value:.{digits}f}")
    axes.set_aspect("equal")
    _number_rows(axes, k)
    every = math.ceil(k / FEW)
    axes.set_xticks(
        [place + 0.5 for place in range(0, k, every)], [str(place + 1) for place in range(0, k, every)]
    )
    return figure


def _number_rows(axes: Axes, k: int) -> None:
    """Number the rows from 1, each in the colour of its cluster."""
    every = math.ceil(k / FEW)
    places = range(0, k, every)
    axes.set_yticks([place + 0.5 for place in places], [str(place + 1) for place in places])
    for place, label in zip(places, axes.get_yticklabels(), strict=True):
        label.set_color(cluster_colour(place))
        label.set_fontweight("bold")
