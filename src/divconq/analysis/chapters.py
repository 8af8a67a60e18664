"""Two chapters of a study: clusters and subspaces."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from divconq.analysis.clusters import (
    Change,
    FactorTable,
    cluster_sizes,
    factors_of_clusters,
    most_split,
    partition_change,
    partition_nmi,
)
from divconq.analysis.findings import (
    Clusters,
    DivisionStep,
    Factors,
    Retrieval,
    Shown,
    Split,
    SplitOver,
    Subspaces,
)
from divconq.analysis.nearest import neighbours
from divconq.analysis.runs import Division
from divconq.analysis.subject import ANSWERS, Subject, sample
from divconq.analysis.subspaces import (
    corrections,
    factors_of_subspaces,
    mask_cosine,
    mask_mass,
    positives,
    shared_dimensions,
    subspace,
    subspace_hits,
)

GALLERY = 12  # images of a cluster, and of a class that is split
SPLIT_CLASSES = 8
CORRECTED, MISLED = 8, 4  # queries that are shown
SPACES = 8  # subspaces that a retrieval shows
QUERIES = 2_000  # that search each subspace
PROBED = 5_000  # images whose factors are looked for in the subspaces


def clusters_of(
    divisions: Sequence[Division], classes: Int64[Tensor, " n"] | None, subject: Subject | None
) -> Clusters | None:
    """The divisions of a run; without classes or embeddings only what can be said without them."""
    if not divisions:
        return None
    k = divisions[-1].k
    sizes = cluster_sizes([division.labels for division in divisions if division.k == k], k)
    before = (None, *divisions[:-1])
    steps = tuple(division_step(new, old, classes) for old, new in zip(before, divisions, strict=True))
    mean, deviation = tuple(sizes.mean.tolist()), tuple(sizes.deviation.tolist())
    if subject is None or subject.clusters is None:
        return Clusters(steps, mean, deviation, (), (), None)
    known, clusters = _one_for_each(subject.images["train"].factors), subject.clusters.cpu()
    factors = _factors(factors_of_clusters(clusters, known, len(subject.masks))) if known else None
    return Clusters(steps, mean, deviation, galleries(subject), split_classes(subject), factors)


def division_step(
    new: Division, old: Division | None, classes: Int64[Tensor, " n"] | None = None
) -> DivisionStep:
    """One division, compared with the classes and with the one before, as far as they are of the same images."""
    nmi, change = math.nan, Change(math.nan, math.nan)
    if classes is not None and len(classes) == len(new.labels):
        nmi = partition_nmi(new.labels, classes)
    if old is not None and len(old.labels) == len(new.labels):
        change = partition_change(new.labels, old.labels, new.k, old.k)
    sizes = tuple(new.labels.bincount(minlength=new.k).tolist())
    return DivisionStep(new.epoch, new.k, nmi, change.nmi, change.kept, sizes)


def galleries(subject: Subject, most: int = GALLERY) -> tuple[tuple[Shown, ...], ...]:
    """For each cluster the images nearest to its mean in the final space; none for an empty one."""
    assert subject.clusters is not None
    shown = []
    for cluster in range(len(subject.masks)):
        members = (subject.clusters == cluster).nonzero().flatten()
        x = subject.x["train"][members]
        away = (x - x.mean(0)).square().sum(1)
        nearest = members[away.argsort(stable=True)[:most]].tolist()
        shown.append(tuple(subject.show("train", index, cluster) for index in nearest))
    return tuple(shown)


def split_classes(subject: Subject, top: int = SPLIT_CLASSES, most: int = GALLERY) -> tuple[SplitOver, ...]:
    """The classes that are split most, with images out of each of their clusters, in the order of these."""
    assert subject.clusters is not None
    images, clusters = subject.images["train"], subject.clusters.cpu()
    found = []
    for split in most_split(images.labels, clusters, len(subject.masks), top):
        seen: dict[int, int] = {}
        turns = []
        for index in (images.labels == split.label).nonzero().flatten().tolist():
            cluster = int(clusters[index])
            turn = seen[cluster] = seen.get(cluster, 0) + 1
            turns.append((turn, cluster, index))
        chosen = sorted((cluster, index) for _, cluster, index in sorted(turns)[:most])
        examples = tuple(subject.show("train", index, cluster) for cluster, index in chosen)
        name = images.names[split.label]
        found.append(SplitOver(name, split.images, split.entropy, split.shares, examples))
    return tuple(found)


def subspaces_of(
    subject: Subject, baseline: Subject | None = None, *, queries: int = QUERIES, seed: int = 0
) -> Subspaces:
    """The masks, and what each subspace finds alone, asked with a sample of the test images."""
    masks = subject.masks
    gallery_labels = subject.labels.get("gallery")
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
    chosen = torch.cat([corrected.helped[:CORRECTED], corrected.hurt[:MISLED]])
    spaces = {f"subspace {number}": _answers(subject.f, mask, chosen) for number, mask in enumerate(masks, 1)}
    spaces["sum"] = _answers(subject.f, subject.final, chosen)
    if baseline is not None:
        spaces["baseline"] = _answers(baseline.f, baseline.final, chosen)
    retrievals = []
    for row, query in enumerate(chosen.tolist()):
        kind: Literal["corrected", "misled"] = (
            "corrected" if row < len(corrected.helped[:CORRECTED]) else "misled"
        )
        found = {name: answer[row].tolist() for name, answer in spaces.items()}
        retrievals.append(_retrieval(subject, query, kind, found))
    known = _one_for_each(subject.images["test"].factors)
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
        retrievals=tuple(retrievals),
        factors=_factors(_probe(subject, known, seed)) if known else None,
    )


def shown_spaces(found: Mapping[str, Sequence[int]], most: int = SPACES) -> list[str]:
    """Which spaces to show: of many subspaces first those that answer otherwise than the sum, in their order.

    >>> shown_spaces({"subspace 1": [4], "subspace 2": [5], "subspace 3": [6], "sum": [4]}, most=2)
    ['subspace 2', 'subspace 3', 'sum']
    """
    single = [name for name in found if name.startswith("subspace")]
    differing = sorted(single, key=lambda name: found[name][:1] == found["sum"][:1])[:most]
    return [name for name in found if name not in single or name in differing]


def _retrieval(
    subject: Subject, query: int, kind: Literal["corrected", "misled"], found: Mapping[str, Sequence[int]]
) -> Retrieval:
    spaces = tuple((name, subject.found(query, found[name])) for name in shown_spaces(found))
    return Retrieval(subject.show("test", query), kind, spaces)


def _answers(
    f: Mapping[Split, Float[Tensor, "_ d"]], mask: Float[Tensor, " d"], queries: Int64[Tensor, " q"]
) -> Int64[Tensor, "q k"]:
    """What the queries find first in one space."""
    gallery = subspace(f["gallery"], mask) if "gallery" in f else None
    return neighbours(subspace(f["test"], mask), ANSWERS, gallery=gallery, queries=queries)


def _probe(subject: Subject, known: Mapping[str, Tensor], seed: int) -> FactorTable:
    chosen = sample(len(subject.images["test"]), PROBED, seed)
    f = subject.f["test"][chosen.to(subject.masks.device)]
    return factors_of_subspaces(
        f, subject.masks, {name: values[chosen] for name, values in known.items()}, seed
    )


def _one_for_each(factors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The factors that are one number for each image."""
    return {name: values.cpu() for name, values in factors.items() if values.ndim == 1}


def _factors(table: FactorTable) -> Factors:
    return Factors(table.names, _matrix(table.values))


def _matrix(values: Tensor) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in values.tolist())
