"""Scores of a search: queries rank the gallery, or each other."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from divconq.evaluation.checks import check_cameras, check_search
from divconq.evaluation.metrics import Ranking
from divconq.evaluation.neighbours import BUDGET, nearest
from divconq.evaluation.scores import METRICS, per_query_metrics


def evaluate(
    query: Float[Tensor, "n d"],
    query_labels: Int64[Tensor, " n"],
    gallery: Float[Tensor, "m d"] | None = None,
    gallery_labels: Int64[Tensor, " m"] | None = None,
    *,
    query_cameras: Int64[Tensor, " n"] | None = None,
    gallery_cameras: Int64[Tensor, " m"] | None = None,
    ks: tuple[int, ...] = (1, 2, 4, 8),
    with_nmi: bool = True,
    nmi_runs: int = 1,
    seed: int = 0,
) -> dict[str, float]:
    """Return every metric of ``scores.METRICS`` by name: the search metrics, and the metrics of all embeddings.

    NMI is the mean over ``nmi_runs`` k-means.

    >>> x = torch.eye(2).repeat(3, 1)
    >>> scores = evaluate(x, torch.tensor([0, 1, 0, 1, 0, 1]), ks=(1,))
    >>> scores["recall@1"], scores["nmi"], round(scores["spread"], 3)
    (1.0, 1.0, 0.5)
    """
    scores = retrieval_scores(
        query,
        query_labels,
        gallery,
        gallery_labels,
        ks,
        query_cameras=query_cameras,
        gallery_cameras=gallery_cameras,
    )
    everything, labels = query, query_labels
    if gallery is not None and gallery_labels is not None:
        everything, labels = torch.cat([query, gallery]), torch.cat([query_labels, gallery_labels])
    for name, metric in METRICS.items():
        if metric.of_embeddings is not None and (with_nmi or name != "nmi"):
            options = {"runs": nmi_runs} if metric.averaged else {}
            scores[name] = metric.of_embeddings(everything, labels, seed, **options)
    return scores


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
    """Return the mean of each ranking metric over all queries.

    Each query ranks the gallery by distance. Without a gallery, the queries rank each other. A query without an
    image of its class to find is left out of every mean; ``queries_without_positive`` counts these and ``queries``
    the others. With cameras, gallery images of the query's class and camera are removed from its ranking.
    ``budget`` is the memory in bytes that the search may use.

    >>> retrieval_scores(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([3, 3, 8]), ks=(1,))["recall@1"]
    1.0
    """
    check_search(query, query_labels, gallery, gallery_labels, ks)
    check_cameras(query, query_cameras, gallery, gallery_cameras)
    alone = gallery is None
    if gallery is None or gallery_labels is None:
        gallery, gallery_labels, gallery_cameras = query, query_labels, query_cameras
    query_labels, gallery_labels = query_labels.to(query.device), gallery_labels.to(query.device)
    exclude, marks, positives = _exclusions(
        query_labels, gallery_labels, query_cameras, gallery_cameras, alone=alone
    )
    counted = (positives > 0).nonzero().flatten()
    if len(counted) == 0:
        raise ValueError(
            f"none of the {len(query)} queries has an image of its class "
            f"{'' if query_cameras is None else 'by another camera '}to find; "
            "check that the labels of queries and gallery name the same classes"
        )
    metrics = per_query_metrics(ks)
    scores = torch.zeros(len(query), len(metrics), dtype=torch.float64, device=query.device)
    for members in _of_similar_size(counted, positives[counted].clamp(min=max(ks))):
        k = max(int(positives[members].max()), *ks)
        hidden = None if exclude is None else exclude[members]
        queries = query if len(members) == len(query) else query[members]
        done = 0
        for neighbours in nearest(queries, gallery, k, exclude=hidden, marks=marks, budget=budget):
            block = members[done : done + len(neighbours)]
            hits = (gallery_labels[neighbours] == query_labels[block, None]) & (neighbours >= 0)
            ranking = Ranking(hits, positives[block])
            scores[block] = torch.stack([metric(ranking) for metric in metrics.values()], dim=1)
            done += len(block)
    return {
        **dict(zip(metrics, scores[counted].mean(0).tolist(), strict=True)),
        "queries": float(len(counted)),
        "queries_without_positive": float(len(query) - len(counted)),
    }


def recall_at_1(
    x: Float[Tensor, "n d"], labels: Int64[Tensor, " n"], cameras: Int64[Tensor, " n"] | None = None
) -> float:
    """Return ``recall@1`` of images that search each other. One neighbour per image is enough for it.

    >>> recall_at_1(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([3, 3, 8]))
    1.0
    """
    labels = labels.to(x.device)
    exclude, marks, positives = _exclusions(labels, labels, cameras, cameras, alone=True)
    found = torch.cat([neighbours[:, 0] for neighbours in nearest(x, x, 1, exclude=exclude, marks=marks)])
    hits = (labels[found] == labels) & (found >= 0)
    return float(hits[positives > 0].double().mean())


def occurrences(values: Int64[Tensor, " q"], among: Int64[Tensor, " g"]) -> Int64[Tensor, " q"]:
    """Return how often each value occurs in ``among``.

    >>> occurrences(torch.tensor([3, 8, 5]), torch.tensor([8, 3, 8])).tolist()
    [1, 2, 0]
    """
    if len(among) == 0:
        return torch.zeros_like(values)
    names, counts = among.unique(return_counts=True)
    place = torch.searchsorted(names, values).clamp(max=len(names) - 1)
    return torch.where(names[place] == values, counts[place], 0)


def _exclusions(
    query_labels: Int64[Tensor, " q"],
    gallery_labels: Int64[Tensor, " g"],
    query_cameras: Int64[Tensor, " q"] | None,
    gallery_cameras: Int64[Tensor, " g"] | None,
    *,
    alone: bool,
) -> tuple[Int64[Tensor, " q"] | None, Int64[Tensor, " g"] | None, Int64[Tensor, " q"]]:
    """Return ``exclude`` and ``marks`` for ``nearest``, and how many images of its class each query can find.

    With cameras, a query excludes images of its class and camera. With ``alone``, it excludes itself.
    """
    exclude, marks = None, None
    if query_cameras is not None and gallery_cameras is not None:
        exclude, marks = _pairs(query_labels, query_cameras, gallery_labels, gallery_cameras)
    elif alone:
        exclude = torch.arange(len(query_labels), device=query_labels.device)
    positives = occurrences(query_labels, gallery_labels)
    if exclude is not None:
        positives -= 1 if marks is None else occurrences(exclude, marks)
    return exclude, marks, positives


def _pairs(
    query_labels: Int64[Tensor, " q"],
    query_cameras: Int64[Tensor, " q"],
    gallery_labels: Int64[Tensor, " g"],
    gallery_cameras: Int64[Tensor, " g"],
) -> tuple[Int64[Tensor, " q"], Int64[Tensor, " g"]]:
    """Return a number for the pair of label and camera of each query, and of each gallery image."""
    labels = torch.cat([query_labels, gallery_labels]).unique(return_inverse=True)[1]
    cameras = torch.cat([query_cameras.to(labels.device), gallery_cameras.to(labels.device)])
    cameras = cameras.unique(return_inverse=True)[1]
    pairs = labels * len(cameras) + cameras
    return pairs[: len(query_labels)], pairs[len(query_labels) :]


def _of_similar_size(
    members: Int64[Tensor, " n"], sizes: Int64[Tensor, " n"]
) -> Iterator[Int64[Tensor, " _"]]:
    """Yield the members in sets whose sizes differ by less than a factor of two.

    This keeps rankings short if a few classes are huge.
    """
    octave = sizes.double().log2().floor()
    for value in octave.unique():
        yield members[octave == value]
