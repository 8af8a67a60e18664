"""Chapter "Subspaces": the masks, retrieval in each subspace, and queries where they correct each other."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from divconq.analysis.chapters.chapter import Chapter, Plot
from divconq.analysis.chapters.factors import factor_figure, factor_sentences
from divconq.analysis.drawing import (
    FEW,
    INK,
    QUIET,
    WIDE,
    Figure,
    bars,
    heat_map,
    new_figure,
    number_rows,
)
from divconq.analysis.measures.factors import FactorTable, factors_of_subspaces
from divconq.analysis.measures.nearest import neighbours, positives
from divconq.analysis.measures.subspaces import (
    corrections,
    mask_cosine,
    mask_mass,
    shared_dimensions,
    subspace,
    subspace_hits,
)
from divconq.analysis.study import Study
from divconq.analysis.subject import ANSWERS, Found, ImageRef, Split, Subject, sample
from divconq.analysis.words import count, difference, percent

Matrix: TypeAlias = tuple[tuple[float, ...], ...]

CORRECTED, MISLED = 8, 4  # queries to show
SPACES = 8  # subspaces to show for a query
QUERIES = 2_000  # that search every subspace
PROBED = 5_000  # images to compare with known factors


@dataclass(frozen=True)
class Retrieval:
    """A query, and its neighbours in each space: ``subspace 1`` .. ``subspace K``, ``sum``, ``baseline``."""

    query: ImageRef
    kind: Literal["corrected", "misled"]
    spaces: tuple[tuple[str, tuple[Found, ...]], ...]

    def rows(self, *, single: bool) -> list[tuple[str, tuple[Found, ...]]]:
        """Return the single subspaces, or the other spaces."""
        return [space for space in self.spaces if space[0].startswith("subspace") == single]


@dataclass(frozen=True)
class Subspaces:
    """The masks relu(s_k) and their overlap, the recall of each subspace, and queries they correct."""

    masks: Matrix
    cosine: Matrix
    shared: tuple[tuple[int, ...], ...]
    mass: tuple[float, ...]
    recalls: tuple[float, ...]
    final_recall: float
    queries: int  # number of queries of the recalls
    corrected: int  # queries for which the sum is right and most subspaces are wrong
    misled: int  # the reverse
    retrievals: tuple[Retrieval, ...]
    factors: FactorTable | None

    @property
    def best(self) -> int:
        """Return the index of the subspace with the highest recall."""
        return int(np.argmax([value if math.isfinite(value) else -1.0 for value in self.recalls]))


def compute(study: Study) -> Subspaces | None:
    """Return the subspaces of the first run; None if it has fewer than two."""
    subject = study.subject
    if subject is None or not subject.record.has_masks:
        return None
    if len(subject.masks) == 1:
        study.note("There are no subspaces to compare: K is 1.")
        return None
    return subspaces_of(subject, study.baseline, seed=study.seed)


def subspaces_of(
    subject: Subject, baseline: Subject | None = None, *, queries: int = QUERIES, seed: int = 0
) -> Subspaces:
    """Return a comparison of the masks, and of searches in every subspace with a sample of the test images."""
    masks, gallery_labels = subject.masks, subject.labels.get("gallery")
    findable = (positives(subject.labels["test"], gallery_labels) > 0).nonzero().flatten()
    asked = findable[sample(len(findable), queries, seed).to(findable.device)]
    hits = subspace_hits(
        subject.f["test"],
        subject.labels["test"],
        masks,
        gallery=subject.f.get("gallery"),
        gallery_labels=gallery_labels,
        queries=asked,
        final=subject.final,
    )
    corrected = corrections(hits)
    known = subject.factors("test")
    return Subspaces(
        masks=_matrix(masks),
        cosine=_matrix(mask_cosine(masks)),
        shared=tuple(tuple(row) for row in shared_dimensions(masks).tolist()),
        mass=tuple(mask_mass(masks).tolist()),
        recalls=tuple(hits.recalls()),
        final_recall=hits.final_recall(),
        queries=len(asked),
        corrected=len(corrected.helped),
        misled=len(corrected.hurt),
        retrievals=_retrievals(subject, baseline, corrected.helped[:CORRECTED], corrected.hurt[:MISLED]),
        factors=_factors(subject, known, seed) if known else None,
    )


def shown_spaces(found: Mapping[str, Sequence[int]], most: int = SPACES) -> list[str]:
    """Return the names of the spaces to show, in the same order: at most ``most`` subspaces, and all other spaces.

    Subspaces whose nearest neighbour differs from that of the sum are preferred.

    >>> shown_spaces({"subspace 1": [4], "subspace 2": [5], "subspace 3": [6], "sum": [4]}, most=2)
    ['subspace 2', 'subspace 3', 'sum']
    """
    single = [name for name in found if name.startswith("subspace")]
    differing = sorted(single, key=lambda name: found[name][:1] == found["sum"][:1])[:most]
    return [name for name in found if name not in single or name in differing]


def _retrievals(
    subject: Subject, baseline: Subject | None, helped: Int64[Tensor, " h"], hurt: Int64[Tensor, " u"]
) -> tuple[Retrieval, ...]:
    """Return the neighbours of the corrected and the misled queries in every space."""
    queries = torch.cat([helped, hurt])
    answers = {
        f"subspace {number}": _answers(subject.f, mask, queries)
        for number, mask in enumerate(subject.masks, 1)
    }
    answers["sum"] = _answers(subject.f, subject.final, queries)
    if baseline is not None:
        answers["baseline"] = _answers(baseline.f, baseline.final, queries)
    retrievals = []
    for row, query in enumerate(queries.tolist()):
        kind: Literal["corrected", "misled"] = "corrected" if row < len(helped) else "misled"
        found = {name: answer[row].tolist() for name, answer in answers.items()}
        spaces = tuple((name, subject.found(query, found[name])) for name in shown_spaces(found))
        retrievals.append(Retrieval(subject.ref("test", query), kind, spaces))
    return tuple(retrievals)


def _answers(
    f: Mapping[Split, Float[Tensor, "_ d"]], mask: Float[Tensor, " d"], queries: Int64[Tensor, " q"]
) -> Int64[Tensor, "q k"]:
    """Return the neighbours of the queries in one space."""
    gallery = subspace(f["gallery"], mask) if "gallery" in f else None
    return neighbours(subspace(f["test"], mask), ANSWERS, gallery=gallery, queries=queries)


def _factors(subject: Subject, known: Mapping[str, Tensor], seed: int) -> FactorTable:
    some = sample(len(subject.images["test"]), PROBED, seed)
    f = subject.f["test"][some.to(subject.masks.device)]
    return factors_of_subspaces(f, subject.masks, {name: known[name][some] for name in known}, seed)


def _matrix(values: Tensor) -> Matrix:
    return tuple(tuple(row) for row in values.tolist())


def summary(found: Subspaces) -> Iterator[str]:
    """Yield sentences on the sum and the best subspace, and on the factors that subspaces follow."""
    if len(found.recalls) > 1 and math.isfinite(found.final_recall):
        best = found.recalls[found.best]
        yield (
            f"The sum of the {len(found.recalls)} subspaces finds the right class for {percent(found.final_recall)} of "
            f"{count(found.queries, 'query', 'queries')}, {difference(found.final_recall - best)} the best single "
            f"subspace (subspace {found.best + 1}, {percent(best)})."
        )
        yield (
            f"For {count(found.corrected, 'query', 'queries')} the sum is right although most subspaces are wrong; "
            f"for {found.misled:,} it is the reverse."
        )
    yield from factor_sentences(found.factors, "subspace")


def masks_figure(found: Subspaces) -> Figure | None:
    """Draw the masks as rows. Columns are sorted by the mask with the largest weight."""
    if not found.masks:
        return None
    weights = np.array(found.masks, dtype=float)
    k, dimensions = weights.shape
    owner = weights.argmax(0)
    order = np.lexsort((-weights.max(0), owner))
    figure, axes = new_figure(
        f"Masks: {dimensions} dimensions, sorted by the mask with the largest weight",
        width=WIDE,
        height=min(1.0 + 0.26 * k, 4.2),
    )
    heat_map(axes, weights[:, order].tolist(), top=float(np.nanmax(weights)), written=None)
    axes.tick_params(length=0)
    number_rows(axes, k)
    axes.set_ylabel("mask")
    axes.set_xticks([])
    for border in np.flatnonzero(np.diff(owner[order])) + 1:
        axes.axvline(border, color=QUIET, linewidth=0.5)
    return figure


def cosine_figure(found: Subspaces) -> Figure | None:
    """Draw the cosine similarity of each pair of masks."""
    return _pairs(found.cosine, "Cosine of each pair of masks", top=1.0, digits=2)


def shared_figure(found: Subspaces) -> Figure | None:
    """Draw how many dimensions each pair of masks shares."""
    top = max((max(row) for row in found.shared), default=0)
    return _pairs(found.shared, "Shared active dimensions", top=top, digits=0)


def mass_figure(found: Subspaces) -> Figure | None:
    """Draw the L1 mass of each mask."""
    return bars(found.mass, "L1 mass of each mask", xlabel="mask") if len(found.mass) > 1 else None


def recall_figure(found: Subspaces) -> Figure | None:
    """Draw the Recall@1 of each subspace as bars, and of the sum as a line."""
    if len(found.recalls) < 2:
        return None
    figure = bars([100 * value for value in found.recalls], "Recall@1 of each subspace, %", xlabel="subspace")
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


def _pairs(values: Sequence[Sequence[float]], title: str, *, top: float, digits: int) -> Figure | None:
    k = len(values)
    if k < 2:
        return None
    figure, axes = new_figure(title, height=2.9)
    heat_map(axes, values, top=top, written=lambda value: f"{value:.{digits}f}")
    axes.set_aspect("equal")
    number_rows(axes, k)
    places = range(0, k, math.ceil(k / FEW))
    axes.set_xticks([place + 0.5 for place in places], [str(place + 1) for place in places])
    return figure


SUBSPACES = Chapter(
    name="subspaces",
    title="Subspaces",
    template=Path(__file__).with_suffix(".html"),
    compute=compute,
    summary=summary,
    plots={
        "masks": Plot("The masks: one row for each mask, one column for each dimension.", masks_figure),
        "mask-cosine": Plot("Cosine similarity of each pair of masks.", cosine_figure),
        "mask-shared": Plot("Shared active dimensions of each pair of masks.", shared_figure),
        "mask-mass": Plot("L1 mass of each mask.", mass_figure),
        "subspace-recall": Plot("Recall@1 of each subspace, and of their sum.", recall_figure),
        "subspace-factors": Plot(
            "NMI of each subspace with each known factor.",
            lambda found: factor_figure(found.factors, "subspace"),
        ),
    },
)
