"""Errors of retrieval: the worst queries, confused classes, likely label errors, and near-duplicates.

The paper shows single failures (section 4.3, "Subspace learning"). These functions list them for any dataset.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from divconq.accel.coordinates import wide_coordinates
from divconq.accel.precision import exact_products
from divconq.analysis.measures.nearest import positives
from divconq.division.lloyd import check_points
from divconq.evaluation.checks import check_gallery
from divconq.evaluation.neighbours import BUDGET

BYTES_PER_SCORE = 24  # a score in float32, its copies if all images share a class, and comparisons
VOTES = 1 << 24  # pairs of neighbours to compare at once


def first_positive_ranks(
    x: Float[Tensor, "n d"],
    labels: Int64[Tensor, " n"],
    ranking: Int64[Tensor, "n k"] | None = None,
    *,
    gallery: Float[Tensor, "g d"] | None = None,
    gallery_labels: Int64[Tensor, " g"] | None = None,
    budget: int = BUDGET,
) -> Int64[Tensor, " n"]:
    """Return the rank, from 1, of the first image of each query's class; 0 if there is no such image.

    Without a gallery the images search each other. Ties go to the lower index. ``ranking`` are the known
    ``neighbours``: only queries without a positive among them are searched again.

    >>> first_positive_ranks(torch.tensor([[0.0], [1.0], [3.0], [9.0]]), torch.tensor([5, 2, 5, 4])).tolist()
    [2, 0, 2, 0]
    """
    check_points(x)
    check_gallery(gallery, gallery_labels)
    found = labels if gallery_labels is None else gallery_labels
    query, searched = _in_one_type(x, x if gallery is None else gallery)
    ranks = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    if ranking is not None and ranking.shape[1]:
        hits = found[ranking] == labels[:, None]
        ranks = (hits.int().argmax(1) + 1) * hits.any(1)
    asked = ((ranks == 0) & (positives(labels, gallery_labels) > 0)).nonzero().flatten()
    asked = asked[labels[asked].argsort(stable=True)]
    half, by_class = searched.square().sum(1) / 2, found.argsort(stable=True)
    names = found[by_class]
    size = BYTES_PER_SCORE * searched.element_size() // 4
    with exact_products(x.device.type):
        for rows in asked.split(max(1, budget // (size * len(searched)))) if len(asked) else ():
            scores = torch.addmm(half, query[rows], searched.T, beta=-1)
            if gallery is None:
                scores.scatter_(1, rows[:, None], -torch.inf)
            # The queries are sorted by class, so the positives of a block are one slice of the sorted gallery.
            start = int(torch.searchsorted(names, labels[rows[:1]]))
            end = int(torch.searchsorted(names, labels[rows[-1:]], right=True))
            right = names[start:end] == labels[rows, None]
            ranks[rows] = _first_ranks(scores, by_class[start:end], right)
    return ranks


def worst_queries(ranks: Int64[Tensor, " n"], top: int = 12) -> Int64[Tensor, " m"]:
    """Return the queries whose first positive has the highest rank, the worst first; rank 1 is left out.

    >>> worst_queries(torch.tensor([1, 7, 0, 30])).tolist()
    [3, 1]
    """
    order = ranks.argsort(descending=True, stable=True)
    return order[ranks[order] > 1][:top]


@dataclass(frozen=True)
class ConfusedPair:
    """Two classes, how often an image of one finds the other first, and the share of their images that do."""

    first: int
    second: int
    count: int
    share: float


def confused_pairs(
    ranking: Int64[Tensor, "n m"],
    labels: Int64[Tensor, " n"],
    gallery_labels: Int64[Tensor, " g"] | None = None,
    top: int = 12,
) -> list[ConfusedPair]:
    """Return the pairs of classes that are confused most, in either direction.

    An image is confused if its nearest neighbour has the other class. Ties go to the pair with the larger share of
    its queries. Only the first column of ``ranking`` is used.

    >>> confused_pairs(torch.tensor([[1], [0], [1], [2]]), torch.tensor([4, 6, 6, 4]))
    [ConfusedPair(first=4, second=6, count=3, share=0.75)]
    """
    if ranking.numel() == 0:
        return []
    theirs = (labels if gallery_labels is None else gallery_labels)[ranking[:, 0]]
    wrong = (theirs != labels) & (ranking[:, 0] >= 0)
    pairs = torch.stack([labels, theirs], 1)[wrong].sort(1).values
    kinds, counts = pairs.unique(dim=0, return_counts=True)
    classes, images = labels.unique(return_counts=True)
    size = dict(zip(classes.tolist(), images.tolist(), strict=True))
    found = [
        ConfusedPair(a, b, count, count / (size.get(a, 0) + size.get(b, 0)))
        for (a, b), count in zip(kinds.tolist(), counts.tolist(), strict=True)
    ]
    return sorted(found, key=lambda pair: (-pair.count, -pair.share, pair.first, pair.second))[:top]


@dataclass(frozen=True)
class LabelError:
    """An image, its class, the class of its neighbours, and the margin of their vote."""

    image: int
    label: int
    suggested: int
    score: float


def label_errors(
    ranking: Int64[Tensor, "n k"], labels: Int64[Tensor, " n"], agreement: float = 0.8
) -> list[LabelError]:
    """Return the images whose k nearest neighbours agree on another class, the highest score first.

    At least the share ``agreement`` of the neighbours must have the same other class. Ties go to the class of the
    nearest. The score is (votes for that class - votes for the image's own class) / k.

    >>> label_errors(torch.tensor([[1, 2], [2, 3], [1, 3], [2, 1]]), torch.tensor([0, 1, 1, 1]))
    [LabelError(image=0, label=0, suggested=1, score=1.0)]
    """
    k, found = ranking.shape[1], []
    if k == 0:
        return []
    for start in range(0, len(ranking), rows := max(1, VOTES // k**2)):
        own, names = labels[start : start + rows], labels[ranking[start : start + rows]]
        support = (names[:, :, None] == names[:, None]).sum(2)
        leader = support.argmax(1, keepdim=True)  # ties go to the nearest
        suggested, votes = names.gather(1, leader)[:, 0], support.gather(1, leader)[:, 0]
        lead = votes - (names == own[:, None]).sum(1)
        for i in ((suggested != own) & (votes >= agreement * k)).nonzero().flatten().tolist():
            found.append(LabelError(start + i, int(own[i]), int(suggested[i]), int(lead[i]) / k))
    return sorted(found, key=lambda error: (-error.score, error.image))


@dataclass(frozen=True)
class Duplicates:
    """Pairs of near-duplicates, their distances in ascending order, and the threshold."""

    pairs: Int64[Tensor, "m 2"]
    distances: Float32[Tensor, " m"]
    threshold: float


def near_duplicates(
    index: Int64[Tensor, " n"], distance: Float32[Tensor, " n"], fraction: float = 0.2
) -> Duplicates:
    """Return the images with a near-duplicate in another class or split, each with its nearest such image.

    ``index`` and ``distance`` come from ``nearest_other``. The threshold is ``fraction`` times the median of all
    these distances; NaN if there are none.

    >>> near_duplicates(torch.tensor([1, 0, 1]), torch.tensor([0.1, 0.1, 1.0]), fraction=1.0).pairs.tolist()
    [[0, 1]]
    """
    known = distance.isfinite()
    threshold = fraction * float(distance[known].median()) if known.any() else float("nan")
    near = (known & (distance <= threshold)).nonzero().flatten()
    pairs = torch.stack([near, index[near]], 1).sort(1).values
    pairs, place = pairs.unique(dim=0, return_inverse=True)
    gaps = distance.new_empty(len(pairs)).scatter_(0, place, distance[near])
    order = gaps.argsort(stable=True)
    return Duplicates(pairs[order], gaps[order], threshold)


def _in_one_type(
    query: Float[Tensor, "n d"], gallery: Float[Tensor, "g d"]
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "g d"]]:
    """Return both in float32, or in float64 coordinates if float32 would lose their distances."""
    coordinates = wide_coordinates(query, gallery) if len(gallery) else None
    if coordinates is None:
        return query.detach().float(), gallery.detach().float()
    return coordinates(query), coordinates(gallery)


def _first_ranks(
    scores: Float[Tensor, "b g"], columns: Int64[Tensor, " p"], right: Bool[Tensor, "b p"]
) -> Int64[Tensor, " b"]:
    """Return the rank of the best score among the right columns; ties go to the lower column."""
    among = scores[:, columns].masked_fill_(~right, -torch.inf)
    place = among.argmax(1, keepdim=True)
    best = among.gather(1, place)
    ranks = 1 + (scores > best).sum(1)
    equal = scores == best
    tied = (equal.sum(1) > 1).nonzero().flatten()
    before = torch.arange(scores.shape[1], device=scores.device) < columns[place[tied]]
    ranks[tied] += (equal[tied] & before).sum(1)
    return ranks
