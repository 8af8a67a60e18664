"""Chapter "Map": a projection of the images onto the plane by UMAP, or by PCA without umap-learn."""

import colorsys
import dataclasses
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from divconq.analysis.chapters.chapter import Chapter, Plot
from divconq.analysis.drawing import (
    GALLERY,
    QUIET,
    TEST,
    TRAIN,
    Axes,
    Figure,
    legend,
    new_figure,
    new_grid,
    short,
)
from divconq.analysis.measures.nearest import distances, neighbours
from divconq.analysis.run_record import RunRecord
from divconq.analysis.study import Study, labels_by
from divconq.analysis.subject import Split, Subject, sample

MOST, FEWEST = 5_000, 8  # images of a map
NEIGHBOURS, EPOCHS = 15, 200  # of UMAP
GOLDEN = 0.6180339887  # step on the colour wheel from one class to the next
COLOURS: dict[Split, str] = {"train": TRAIN, "test": TEST, "gallery": GALLERY}


Points: TypeAlias = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Plane:
    """The points of a run."""

    name: str
    points: Points


@dataclass(frozen=True)
class Map:
    """A point, a class label and a split for each image of a sample; ``of`` is the number of all images.

    ``runs`` has the points of the same images in every run, if there are several.
    """

    points: Points
    labels: tuple[int, ...]
    splits: tuple[Split, ...]
    of: int
    method: Literal["UMAP", "PCA"] = "UMAP"
    runs: tuple[Plane, ...] = ()


def compute(study: Study) -> Map | None:
    """Return the map of the first run, with the same images in the other runs; None if it has too few images."""
    if study.subject is None:
        return None
    found = map_of(study.subject, seed=study.seed)
    if found is None:
        study.note(f"There is no map: it needs at least {FEWEST} images.")
        return None
    if found.method == "PCA":
        study.note('The map is a projection by PCA: UMAP is not installed; pip install "divconq[umap]".')
    maps = [(study.subject.record, study.subject.name, found.points)]
    for other in study.others():
        if other.images["train"].paths == study.subject.images["train"].paths:
            points, _ = project(sampled(other, seed=study.seed), seed=study.seed)
            maps.append((other.record, other.name, points))
        else:
            study.note(f"The map of {other.name} is left out: it has other training images.")
    return dataclasses.replace(found, runs=_planes(maps) if len(maps) > 1 else ())


def _planes(maps: Sequence[tuple[RunRecord, str, Points]]) -> tuple[Plane, ...]:
    """Return the maps of several runs, named by K_max and in its order."""
    k_max = [record.config.division.k_max for record, _, _ in maps]
    labels = labels_by(k_max, [name for _, name, _ in maps], "K_max")
    order = sorted(range(len(maps)), key=lambda run: (k_max[run], run))
    return tuple(Plane(labels[run], maps[run][2]) for run in order)


def sampled(subject: Subject, *, most: int = MOST, seed: int = 0) -> Float[Tensor, "m d"]:
    """Return the embeddings of a sample of all images of a run; the same images for runs of the same dataset."""
    x = torch.cat(list(subject.x.values()))
    return x[sample(len(x), most, seed).to(x.device)]


def map_of(subject: Subject, *, most: int = MOST, seed: int = 0) -> Map | None:
    """Return a projection of a sample of the images onto the plane, or None if there are too few."""
    counts = {split: len(x) for split, x in subject.x.items()}
    total = sum(counts.values())
    if total < FEWEST:
        return None
    points, method = project(sampled(subject, most=most, seed=seed), seed=seed)
    some = sample(total, most, seed).tolist()
    splits: list[Split] = [split for split, count in counts.items() for _ in range(count)]
    labels = torch.cat(list(subject.labels.values())).tolist()
    return Map(points, tuple(labels[i] for i in some), tuple(splits[i] for i in some), total, method)


def project(x: Float[Tensor, "m d"], *, seed: int = 0) -> tuple[Points, Literal["UMAP", "PCA"]]:
    """Return a point in the plane for each row of ``x``, and the method: UMAP, or PCA if UMAP is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from umap import UMAP
    except ImportError:
        return _as_points(principal_plane(x)), "PCA"
    found = neighbours(x, min(NEIGHBOURS, len(x)) - 1)
    own = torch.arange(len(x), device=x.device)[:, None]
    known = torch.cat([own, found], 1), torch.cat([torch.zeros_like(own), distances(x, x, found)], 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a seed limits UMAP to one thread
        projection = UMAP(
            n_neighbors=known[0].shape[1],
            precomputed_knn=tuple(part.cpu().numpy() for part in known),
            n_epochs=EPOCHS,
            random_state=seed,
        ).fit_transform(x.cpu().numpy())
    return _as_points(projection), "UMAP"


def principal_plane(x: Float[Tensor, "m d"]) -> Float64[Tensor, "m 2"]:
    """Return the coordinates of the rows of ``x`` along their first two principal components.

    The sign is such that the largest weight of each component is positive.

    >>> principal_plane(torch.tensor([[0.0, 1.0, 5.0], [2.0, 1.0, 5.0], [4.0, 1.0, 5.0]])).tolist()
    [[-2.0, 0.0], [0.0, 0.0], [2.0, 0.0]]
    """
    exact = x.double().cpu()
    centred = exact - exact.mean(0)
    _, axes = torch.linalg.eigh(centred.T @ centred)  # the largest last
    first = axes[:, -2:].flip(1)
    signs = first.gather(0, first.abs().argmax(0, keepdim=True)).sign()
    plane = centred @ (first * signs) + 0.0  # no -0.0
    return torch.cat([plane, plane.new_zeros(len(x), 2 - plane.shape[1])], 1)


def _as_points(projection: Tensor | np.ndarray) -> Points:
    return tuple((float(across), float(up)) for across, up in projection.tolist())


def classes_figure(plane: Map) -> Figure | None:
    """Draw the training images in the colours of their classes."""
    places = [place for place, split in enumerate(plane.splits) if split == "train"]
    if not places:
        return None
    colours = [_class_colour(plane.labels[place]) for place in places]
    return _scatter(plane, places, colours, f"{plane.method} of {len(places)} training images, by class")


def splits_figure(plane: Map) -> Figure | None:
    """Draw training and test images together."""
    present = [split for split in COLOURS if split in plane.splits]
    if len(present) < 2:
        return None
    colours = [COLOURS[split] for split in plane.splits]
    figure = _scatter(plane, range(len(plane.points)), colours, f"{plane.method} of training and test images")
    handles = [figure.axes[0].scatter([], [], s=20, color=COLOURS[split]) for split in present]
    legend(figure, handles, present, columns=3)
    return figure


def _scatter(plane: Map, places: Sequence[int], colours: Sequence[object], title: str) -> Figure:
    """Draw the points of one run."""
    figure, axes = new_figure(title, height=3.7)
    _draw_points(axes, plane.points, places, colours)
    return figure


def runs_figure(plane: Map, kind: Literal["classes", "splits"]) -> Figure | None:
    """Draw the same images in every run, side by side: the training images by class, or all images by split."""
    if not plane.runs:
        return None
    places = [place for place, split in enumerate(plane.splits) if split == "train" or kind == "splits"]
    present = [split for split in COLOURS if split in plane.splits]
    if not places or (kind == "splits" and len(present) < 2):
        return None
    colours = [
        _class_colour(plane.labels[i]) if kind == "classes" else COLOURS[plane.splits[i]] for i in places
    ]
    of = "training images, by class" if kind == "classes" else "training and test images"
    count = len(plane.runs)
    columns = 3 if count in (5, 6) else min(count, 4)
    rows = math.ceil(count / columns)
    figure, panels = new_grid(
        f"{plane.method} of the same {len(places):,} {of}",
        count,
        columns,
        height=0.4 + rows * 7 / columns,
    )
    for axes, run in zip(panels, plane.runs, strict=True):
        axes.set_title(short(run.name), fontsize=8, color=QUIET)
        _draw_points(axes, run.points, places, colours, shrink=columns)
    if kind == "splits":
        handles = [panels[0].scatter([], [], s=20, color=COLOURS[split]) for split in present]
        legend(figure, handles, present, columns=3)
    return figure


def _class_colour(label: int) -> tuple[float, float, float]:
    return colorsys.hls_to_rgb(label * GOLDEN % 1, 0.52, 0.6)


def _draw_points(
    axes: Axes, points: Points, places: Sequence[int], colours: Sequence[object], shrink: float = 1.0
) -> None:
    """Draw points in random order, so that no class or split hides the others."""
    order = np.random.default_rng(0).permutation(len(places))
    xs, ys = zip(*(points[places[i]] for i in order), strict=True)
    size = min(14.0, max(2.0, 12000 / len(places))) / shrink
    axes.scatter(xs, ys, s=size, c=[colours[i] for i in order], alpha=0.75, linewidths=0, rasterized=True)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set_aspect("equal", adjustable="datalim")


PROJECTION = Chapter(
    name="map",
    title="Map",
    template=Path(__file__).with_suffix(".html"),
    compute=compute,
    plots={
        "umap-classes": Plot("Training images by class.", classes_figure),
        "umap-splits": Plot("Training images and test images.", splits_figure),
        "umap-runs-classes": Plot(
            "Training images by class, in every run.", lambda plane: runs_figure(plane, "classes")
        ),
        "umap-runs-splits": Plot(
            "Training images and test images, in every run.", lambda plane: runs_figure(plane, "splits")
        ),
    },
)
