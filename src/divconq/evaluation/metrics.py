"""How well images find those of their class, and how well clusters agree with classes."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from divconq.division.lloyd import kmeans
from divconq.evaluation.neighbours import BUDGET, nearest


def retrieval_scores(
    query: Float[Tensor, "q d"],
    query_labels: Int64[Tensor, " q"],
    gallery: Float[Tensor, "g d"] | None = None,
    gallery_labels: Int64[Tensor, " g"] | None = None,
    ks: Sequence[int] = (1, 2, 4, 8),
    *,
    query_cameras: Int64[Tensor, " q"] | None = None,
    gallery_cameras: Int64[Tensor, " g"] | None = None,
    budget: int = BUDGET,
) -> dict[str, float]:
    """Scores, from 0 to 1, of ranking the gallery (without one: the other queries) by distance to each query.

    With R images of its class to find, hits h_i and precisions p_i = Σ_{j≤i} h_j / i at the ranks i ≤ R:
    ``map@r`` = Σ h_i p_i / R, ``marp`` = Σ h_i p_i / Σ h_i, ``r_precision`` = Σ h_i / R, averaged.
    ``queries_without_positive`` have R = 0 and are left out of every mean; ``queries`` counts the others.
    With cameras, images of the query's class by its own camera are dropped from its ranking and not in R.

    >>> retrieval_scores(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([3, 3, 8]), ks=(1,))["recall@1"]
    1.0
    """
    _check(query, query_labels, gallery, gallery_labels, ks)
    _check_cameras(query, query_cameras, gallery, gallery_cameras)
    alone = gallery is None
    if gallery is None or gallery_labels is None:
        gallery, gallery_labels, gallery_cameras = query, query_labels, query_cameras
    query_labels, gallery_labels = query_labels.to(query.device), gallery_labels.to(query.device)
    exclude, marks = None, None  # a query may not find itself, or images of its own mark
    if query_cameras is not None and gallery_cameras is not None:
        exclude, marks = _pairs(query_labels, query_cameras, gallery_labels, gallery_cameras)
    elif alone:
        exclude = torch.arange(len(query), device=query.device)
    positives = occurrences(query_labels, gallery_labels)
    if exclude is not None:
        positives -= 1 if marks is None else occurrences(exclude, marks)
    counted = (positives > 0).nonzero().flatten()
    if len(counted) == 0:
        raise ValueError(
            f"none of the {len(query)} queries has an image of its class "
            f"{'' if query_cameras is None else 'by another camera '}to find; "
            "check that the labels of queries and gallery name the same classes"
        )
    scores = torch.zeros(len(query), len(ks) + 3, dtype=torch.float64, device=query.device)
    for members in _of_similar_size(counted, positives[counted].clamp(min=max(ks))):
        k = max(int(positives[members].max()), *ks)
        hidden = None if exclude is None else exclude[members]
        queries = query if len(members) == len(query) else query[members]
        rankings = nearest(queries, gallery, k, exclude=hidden, marks=marks, budget=budget)
        done = 0
        for ranking in rankings:
            block = members[done : done + len(ranking)]
            hits = (gallery_labels[ranking] == query_labels[block, None]) & (ranking >= 0)
            scores[block] = _scores(hits, positives[block], ks)
            done += len(block)
    names = [*(f"recall@{k}" for k in ks), "map@r", "r_precision", "marp"]
    return {
        **dict(zip(names, scores[counted].mean(0).tolist(), strict=True)),
        "queries": float(len(counted)),
        "queries_without_positive": float(len(query) - len(counted)),
    }


def recall_at_1(
    x: Float[Tensor, "n d"], labels: Int64[Tensor, " n"], cameras: Int64[Tensor, " n"] | None = None
) -> float:
    """``recall@1`` of ``retrieval_scores`` alone, of images that search each other: one neighbour each is enough.

    >>> recall_at_1(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([3, 3, 8]))
    1.0
    """
    labels, marks = labels.to(x.device), None
    exclude = torch.arange(len(x), device=x.device)
    if cameras is not None:
        exclude, marks = _pairs(labels, cameras, labels, cameras)
    hidden = 1 if marks is None else occurrences(exclude, marks)
    counted = occurrences(labels, labels) > hidden
    found = torch.cat([ranking[:, 0] for ranking in nearest(x, x, 1, exclude=exclude, marks=marks)])
    hits = (labels[found] == labels) & (found >= 0)
    return float(hits[counted].double().mean())


def nmi(
    x: Float[Tensor, "n d"], labels: Int64[Tensor, " n"], seed: int = 0, *, iterations: int = 25
) -> float:
    """Normalised mutual information 2 I(C; Y) / (H(C) + H(Y)) of classes Y and as many k-means clusters C.

    >>> nmi(torch.tensor([[0.0], [0.1], [7.0], [7.1]]), torch.tensor([4, 4, 9, 9]))
    1.0
    """
    _check_set("x", x, labels)
    clusters = kmeans(x, len(labels.unique()), seed=seed, iterations=iterations)
    return normalised_information(clusters, labels.to(clusters.device))


def normalised_information(a: Int64[Tensor, " n"], b: Int64[Tensor, " n"]) -> float:
    """2 I(A; B) / (H(A) + H(B)) of two ways to group the same things; 1 if both put all into one group.

    By I = H(A) + H(B) - H(A, B). scikit-learn has the same; to import it takes longer than a whole evaluation.

    >>> normalised_information(torch.tensor([0, 0, 1, 1]), torch.tensor([7, 7, 3, 3]))
    1.0
    """
    a, b = (groups.unique(return_inverse=True)[1] for groups in (a, b))
    h_a, h_b, h_ab = (_entropy(groups) for groups in (a, b, a * (b.max() + 1) + b))
    return max(0.0, 2 * (h_a + h_b - h_ab) / (h_a + h_b)) if h_a + h_b > 0 else 1.0


def _entropy(groups: Int64[Tensor, " n"]) -> float:
    share = groups.unique(return_counts=True)[1].double() / len(groups)
    return float(-(share * share.log()).sum())


def _scores(
    hits: Bool[Tensor, "b k"], positives: Int64[Tensor, " b"], ks: Sequence[int]
) -> Float64[Tensor, "b s"]:
    """Recalls, map@r, r_precision and marp of each query."""
    rank = torch.arange(1, hits.shape[1] + 1, device=hits.device)
    early = hits & (rank <= positives[:, None])
    found = early.sum(1)
    precisions = (early.cumsum(1).double() / rank).masked_fill_(~early, 0).sum(1)
    recalls = [hits[:, :k].any(1).double() for k in ks]
    return torch.stack(
        [*recalls, precisions / positives, found.double() / positives, precisions / found.clamp(min=1)], dim=1
    )


def occurrences(values: Int64[Tensor, " q"], among: Int64[Tensor, " g"]) -> Int64[Tensor, " q"]:
    """How often each value is found among others.

    >>> occurrences(torch.tensor([3, 8, 5]), torch.tensor([8, 3, 8])).tolist()
    [1, 2, 0]
    """
    if len(among) == 0:
        return torch.zeros_like(values)
    names, counts = among.unique(return_counts=True)
    place = torch.searchsorted(names, values).clamp(max=len(names) - 1)
    return torch.where(names[place] == values, counts[place], 0)


def _pairs(
    query_labels: Int64[Tensor, " q"],
    query_cameras: Int64[Tensor, " q"],
    gallery_labels: Int64[Tensor, " g"],
    gallery_cameras: Int64[Tensor, " g"],
) -> tuple[Int64[Tensor, " q"], Int64[Tensor, " g"]]:
    """Number the pairs of a label and a camera: those of the queries, and those of the gallery."""
    labels = torch.cat([query_labels, gallery_labels]).unique(return_inverse=True)[1]
    cameras = torch.cat([query_cameras.to(labels.device), gallery_cameras.to(labels.device)])
    cameras = cameras.unique(return_inverse=True)[1]
    pairs = labels * len(cameras) + cameras
    return pairs[: len(query_labels)], pairs[len(query_labels) :]


def _of_similar_size(
    members: Int64[Tensor, " n"], sizes: Int64[Tensor, " n"]
) -> Iterator[Int64[Tensor, " _"]]:
    """Members in sets whose sizes are within a factor of two: a few huge classes do not burden the others."""
    octave = sizes.double().log2().floor()
    for value in octave.unique():
        yield members[octave == value]


def check_gallery(gallery: Tensor | None, gallery_labels: Tensor | None) -> None:
    """Refuse a gallery without its labels, and labels without their gallery.

    >>> check_gallery(torch.ones(3, 2), None)
    Traceback (most recent call last):
    ValueError: gallery and gallery_labels go together, got only gallery; pass gallery_labels too
    """
    if (gallery is None) != (gallery_labels is None):
        given, missing = (
            ("gallery", "gallery_labels") if gallery_labels is None else ("gallery_labels", "gallery")
        )
        raise ValueError(f"gallery and gallery_labels go together, got only {given}; pass {missing} too")


def _check(
    query: Tensor,
    query_labels: Tensor,
    gallery: Tensor | None,
    gallery_labels: Tensor | None,
    ks: Sequence[int],
) -> None:
    _check_set("query", query, query_labels)
    check_gallery(gallery, gallery_labels)
    findable = len(query) - 1
    if gallery is not None and gallery_labels is not None:
        _check_set("gallery", gallery, gallery_labels)
        findable = len(gallery)
        if gallery.shape[1] != query.shape[1]:
            raise ValueError(
                f"query and gallery must have as many features, got {query.shape[1]} and "
                f"{gallery.shape[1]}; embed both with the same model"
            )
    if len(ks) == 0 or min(ks) < 1 or max(ks) > findable:
        raise ValueError(
            f"ks must lie between 1 and the {findable} images that a query can find, got {tuple(ks)}; "
            "use smaller ks or more images"
        )


def _check_cameras(
    query: Tensor, query_cameras: Tensor | None, gallery: Tensor | None, gallery_cameras: Tensor | None
) -> None:
    if gallery is None and gallery_cameras is not None:
        raise ValueError("gallery_cameras need a gallery, got none; pass query_cameras only")
    if gallery is not None and (query_cameras is None) != (gallery_cameras is None):
        given, missing = (
            ("query_cameras", "gallery_cameras")
            if gallery_cameras is None
            else ("gallery_cameras", "query_cameras")
        )
        raise ValueError(
            f"query_cameras and gallery_cameras go together, got only {given}; pass {missing} too"
        )
    for name, x, cameras in (("query", query, query_cameras), ("gallery", gallery, gallery_cameras)):
        if x is not None and cameras is not None and cameras.shape != x.shape[:1]:
            raise ValueError(
                f"{name} needs one camera for each of its {len(x)} images, got shape {tuple(cameras.shape)}"
            )


def _check_set(name: str, x: Tensor, labels: Tensor) -> None:
    if x.ndim != 2 or len(x) == 0:
        raise ValueError(f"{name} must be of shape (images, features) and not empty, got {tuple(x.shape)}")
    if labels.shape != x.shape[:1]:
        raise ValueError(
            f"{name} needs one label for each of its {len(x)} images, got shape {tuple(labels.shape)}"
        )
    bad = int((~torch.isfinite(x.detach().float().square().sum(1))).sum())
    if bad:
        raise ValueError(
            f"{name} must be finite, got NaN, infinity or too large values in {bad} of {len(x)} rows; "
            "check the network that made it"
        )
