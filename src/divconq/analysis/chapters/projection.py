"""Chapter "Map": a projection of the images onto the plane by UMAP."""

import colorsys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from divconq.analysis.chapters.chapter import Chapter, Plot
from divconq.analysis.drawing import GALLERY, TEST, TRAIN, Figure, legend, new_figure
from divconq.analysis.measures.nearest import distances, neighbours
from divconq.analysis.study import Study
from divconq.analysis.subject import Split, Subject, sample

MOST, FEWEST = 5_000, 8  # images of a map
NEIGHBOURS, EPOCHS = 15, 200  # of UMAP
GOLDEN = 0.6180339887  # step on the colour wheel from one class to the next
COLOURS: dict[Split, str] = {"train": TRAIN, "test": TEST, "gallery": GALLERY}


@dataclass(frozen=True)
class Map:
    """A point, a class label and a split for each image of a sample; ``of`` is the number of all images."""

    points: tuple[tuple[float, float], ...]
    labels: tuple[int, ...]
    splits: tuple[Split, ...]
    of: int


def compute(study: Study) -> Map | None:
    """Return the map of the first run; None if it has too few images or UMAP is not installed."""
    if study.subject is None:
        return None
    found = map_of(study.subject, seed=study.seed)
    if isinstance(found, str):
        study.note(found)
        return None
    return found


def map_of(subject: Subject, *, most: int = MOST, seed: int = 0) -> Map | str:
    """Return a projection of a sample of the images onto the plane, or a sentence if that is not possible."""
    counts = {split: len(x) for split, x in subject.x.items()}
    total = sum(counts.values())
    if total < FEWEST:
        return f"There is no map: it needs at least {FEWEST} images, and there are {total}."
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from umap import UMAP
    except ImportError:
        return 'There is no map: UMAP is not installed; pip install "divconq[umap]".'
    some = sample(total, most, seed)
    x = torch.cat(list(subject.x.values()))[some.to(subject.masks.device)]
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
    splits: list[Split] = [split for split, count in counts.items() for _ in range(count)]
    labels = torch.cat(list(subject.labels.values())).tolist()
    return Map(
        tuple((float(across), float(up)) for across, up in projection),
        tuple(labels[i] for i in some.tolist()),
        tuple(splits[i] for i in some.tolist()),
        total,
    )


def classes_figure(plane: Map) -> Figure | None:
    """Draw the training images in the colours of their classes."""
    places = [place for place, split in enumerate(plane.splits) if split == "train"]
    if not places:
        return None
    colours = [colorsys.hls_to_rgb(plane.labels[place] * GOLDEN % 1, 0.52, 0.6) for place in places]
    return _scatter(plane, places, colours, f"UMAP of {len(places)} training images, by class")


def splits_figure(plane: Map) -> Figure | None:
    """Draw training and test images together."""
    present = [split for split in COLOURS if split in plane.splits]
    if len(present) < 2:
        return None
    colours = [COLOURS[split] for split in plane.splits]
    figure = _scatter(plane, range(len(plane.points)), colours, "UMAP of training and test images")
    handles = [figure.axes[0].scatter([], [], s=20, color=COLOURS[split]) for split in present]
    legend(figure, handles, present, columns=3)
    return figure


def _scatter(plane: Map, places: Sequence[int], colours: Sequence[object], title: str) -> Figure:
    """Draw points in random order, so that no class or split hides the others."""
    figure, axes = new_figure(title, height=3.7)
    order = np.random.default_rng(0).permutation(len(places))
    xs, ys = zip(*(plane.points[places[i]] for i in order), strict=True)
    size = min(14.0, max(2.0, 12000 / len(places)))
    axes.scatter(xs, ys, s=size, c=[colours[i] for i in order], alpha=0.75, linewidths=0, rasterized=True)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set_aspect("equal", adjustable="datalim")
    return figure


PROJECTION = Chapter(
    name="map",
    title="Map",
    template=Path(__file__).with_suffix(".html"),
    compute=compute,
    plots={
        "umap-classes": Plot("Training images by class.", classes_figure),
        "umap-splits": Plot("Training images and test images.", splits_figure),
    },
)
