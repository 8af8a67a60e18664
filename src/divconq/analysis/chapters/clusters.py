"""Chapter "Clusters": the divisions of a run, and the images in each cluster."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxtyping import Int64
from torch import Tensor

from divconq.analysis.chapters.chapter import Chapter, Plot
from divconq.analysis.chapters.consistency import Consistency, consistency_figure, consistency_of
from divconq.analysis.chapters.factors import factor_figure, factor_sentences
from divconq.analysis.drawing import (
    FEW,
    INK,
    PAPER,
    QUIET,
    Axes,
    Figure,
    bars,
    cluster_colour,
    legend,
    new_figure,
    whole_numbers,
)
from divconq.analysis.measures.clusters import (
    Change,
    cluster_sizes,
    most_split,
    partition_change,
    partition_nmi,
)
from divconq.analysis.measures.factors import FactorTable, factors_of_clusters
from divconq.analysis.run_record import Division
from divconq.analysis.study import Study
from divconq.analysis.subject import ImageRef, Subject
from divconq.analysis.words import count, number

GALLERY = 12  # images to show of a cluster, and of a split class
SPLIT_CLASSES = 8


@dataclass(frozen=True)
class DivisionStep:
    """One division: NMI with the classes and with the previous division, share of images kept, cluster sizes."""

    epoch: int
    k: int
    nmi_classes: float
    nmi_previous: float
    kept: float
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class SplitOver:
    """A class in several clusters: its shares, their entropy in bits, and some of its images."""

    label: str
    images: int
    entropy: float
    shares: tuple[float, ...]
    examples: tuple[ImageRef, ...]


@dataclass(frozen=True)
class Clusters:
    """The divisions in order, and the clusters of the last one.

    ``mean_size`` and ``deviation`` are over the divisions into the final K. ``consistency`` compares several runs.
    """

    divisions: tuple[DivisionStep, ...]
    mean_size: tuple[float, ...]
    deviation: tuple[float, ...]
    galleries: tuple[tuple[ImageRef, ...], ...]
    split_classes: tuple[SplitOver, ...]
    factors: FactorTable | None
    consistency: tuple[Consistency, ...] = ()


def compute(study: Study) -> Clusters | None:
    """Return the clusters of the first run; None without divisions."""
    labels = study.images["train"].labels if study.images else None
    clusters = clusters_of(study.records[0].divisions, labels, study.subject)
    consistency = consistency_of(study.names, study.records)
    if clusters is None and consistency:
        study.note("The clusters of several runs are compared only if the first run has divisions.")
    return clusters and dataclasses.replace(clusters, consistency=consistency)


def clusters_of(
    divisions: Sequence[Division], labels: Int64[Tensor, " n"] | None, subject: Subject | None
) -> Clusters | None:
    """Return the clusters of a run. Without labels or embeddings, the parts that need them are empty."""
    if not divisions:
        return None
    k = divisions[-1].k
    sizes = cluster_sizes([division.clusters for division in divisions if division.k == k], k)
    previous = (None, *divisions[:-1])
    steps = tuple(division_step(new, old, labels) for old, new in zip(previous, divisions, strict=True))
    mean, deviation = tuple(sizes.mean.tolist()), tuple(sizes.deviation.tolist())
    if subject is None or subject.clusters is None:
        return Clusters(steps, mean, deviation, (), (), None)
    known = subject.factors("train")
    factors = factors_of_clusters(subject.clusters.cpu(), known, len(subject.masks)) if known else None
    return Clusters(steps, mean, deviation, galleries(subject), split_classes(subject), factors)


def division_step(
    new: Division, old: Division | None, labels: Int64[Tensor, " n"] | None = None
) -> DivisionStep:
    """Return the comparison of a division with the classes, and with the previous division of the same images."""
    nmi, change = math.nan, Change(math.nan, math.nan)
    if labels is not None and len(labels) == len(new.clusters):
        nmi = partition_nmi(new.clusters, labels)
    if old is not None and len(old.clusters) == len(new.clusters):
        change = partition_change(new.clusters, old.clusters, new.k, old.k)
    sizes = tuple(new.clusters.bincount(minlength=new.k).tolist())
    return DivisionStep(new.epoch, new.k, nmi, change.nmi, change.kept, sizes)


def galleries(subject: Subject, most: int = GALLERY) -> tuple[tuple[ImageRef, ...], ...]:
    """Return for each cluster the images nearest to its mean in the final space."""
    assert subject.clusters is not None
    shown = []
    for cluster in range(len(subject.masks)):
        members = (subject.clusters == cluster).nonzero().flatten()
        x = subject.x["train"][members]
        squares = (x - x.mean(0)).square().sum(1)
        nearest = members[squares.argsort(stable=True)[:most]].tolist()
        shown.append(tuple(subject.ref("train", index, cluster) for index in nearest))
    return tuple(shown)


def split_classes(subject: Subject, top: int = SPLIT_CLASSES, most: int = GALLERY) -> tuple[SplitOver, ...]:
    """Return the classes that are split most, each with images from all of its clusters, ordered by cluster."""
    assert subject.clusters is not None
    images, clusters = subject.images["train"], subject.clusters.cpu()
    found = []
    for split in most_split(images.labels, clusters, len(subject.masks), top):
        seen: dict[int, int] = {}
        turns = []  # the first image of every cluster, then the second, ...
        for index in (images.labels == split.label).nonzero().flatten().tolist():
            cluster = int(clusters[index])
            turn = seen[cluster] = seen.get(cluster, 0) + 1
            turns.append((turn, cluster, index))
        selected = sorted((cluster, index) for _, cluster, index in sorted(turns)[:most])
        examples = tuple(subject.ref("train", index, cluster) for cluster, index in selected)
        name = images.names[split.label]
        found.append(SplitOver(name, split.images, split.entropy, split.shares, examples))
    return tuple(found)


def summary(clusters: Clusters) -> Iterator[str]:
    """Yield sentences on the last division, the most split class, and the factors that clusters follow."""
    last = clusters.divisions[-1]
    yield (
        f"The {count(sum(last.sizes), 'training image')} were divided {count(len(clusters.divisions), 'time')}, "
        f"finally into K = {last.k} clusters of {min(last.sizes):,} to {max(last.sizes):,} images "
        f"(NMI with the classes {number(last.nmi_classes)})."
    )
    empty = sum(size == 0 for size in last.sizes)
    if empty:
        yield f"{count(empty, 'cluster is', 'clusters are')} empty."
    for split in clusters.split_classes[:1]:
        used = sum(share > 0 for share in split.shares)
        yield f"The most split class is {split.label}: its {split.images} images are in {used} clusters."
    yield from factor_sentences(clusters.factors, "cluster")


def nmi_figure(clusters: Clusters) -> Figure | None:
    """Draw the NMI of each division with the classes, and with the previous division."""
    steps = clusters.divisions
    lines = {
        "with the classes": [step.nmi_classes for step in steps],
        "with the previous one": [step.nmi_previous for step in steps],
    }
    return _over_divisions(steps, "NMI of each division", lines)


def kept_figure(clusters: Clusters) -> Figure | None:
    """Draw the share of images that kept their cluster at each division."""
    kept = [100 * step.kept for step in clusters.divisions]
    return _over_divisions(clusters.divisions, "Images that kept their cluster, %", {"": kept}, top=100)


def sizes_figure(clusters: Clusters) -> Figure | None:
    """Draw the cluster sizes at every division as stacked bars. Children are drawn in place of their parent."""
    steps = clusters.divisions
    if not steps:
        return None
    final = steps[-1].k
    figure, axes = new_figure("Images in each cluster")
    rasterized = sum(step.k for step in steps) > 400
    for place, step in enumerate(steps):
        below = 0
        for cluster, size in enumerate(step.sizes):
            descendant = cluster * final // step.k if step.k <= final else cluster
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


def mean_sizes_figure(clusters: Clusters) -> Figure | None:
    """Draw the mean size of each cluster with its standard deviation."""
    if not clusters.mean_size:
        return None
    return bars(
        clusters.mean_size,
        "Mean size over divisions, ± deviation",
        xlabel="cluster",
        deviation=clusters.deviation,
    )


def _over_divisions(
    steps: Sequence[DivisionStep], title: str, lines: dict[str, list[float]], top: float = 1.0
) -> Figure | None:
    lines = {name: values for name, values in lines.items() if any(map(math.isfinite, values))}
    if not lines:
        return None
    figure, axes = new_figure(title)
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
    """Write the cluster numbers into the bar at ``place``, except into thin segments."""
    below = 0
    for cluster, size in enumerate(sizes, 1):
        if size > 0.06 * sum(sizes):
            axes.text(
                place, below + size / 2, str(cluster), ha="center", va="center", color=PAPER, fontsize=8
            )
        below += size


CLUSTERS = Chapter(
    name="clusters",
    title="Clusters",
    template=Path(__file__).with_suffix(".html"),
    compute=compute,
    summary=summary,
    plots={
        "cluster-nmi": Plot(
            "NMI of each division with the classes, and with the previous division.", nmi_figure
        ),
        "cluster-kept": Plot("Share of the images that kept their cluster.", kept_figure),
        "consistency-nmi": Plot(
            "NMI of each division with the previous one, one line for each run.",
            lambda found: consistency_figure(
                found.consistency, "nmi", "NMI with the previous division, by run"
            ),
        ),
        "consistency-kept": Plot(
            "Share of the images that kept their cluster, one line for each run.",
            lambda found: consistency_figure(
                found.consistency, "kept", "Images that kept their cluster, %, by run", 100
            ),
        ),
        "cluster-sizes": Plot("Sizes of the clusters at every division.", sizes_figure),
        "cluster-mean-sizes": Plot("Mean size of each cluster, and its deviation.", mean_sizes_figure),
        "cluster-factors": Plot(
            "NMI of each cluster with each known factor.",
            lambda found: factor_figure(found.factors, "cluster"),
        ),
    },
)
