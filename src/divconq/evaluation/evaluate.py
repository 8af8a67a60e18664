"""All scores of a model on the images to search."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from divconq.evaluation.metrics import nmi, retrieval_scores


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
    seed: int = 0,
) -> dict[str, float]:
    """Retrieval scores, NMI over all the images given, and the spread of the unit vectors.

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
    if with_nmi:
        scores["nmi"] = nmi(everything, labels, seed=seed)
    scores["spread"] = spread(everything)
    return scores


def spread(x: Float[Tensor, "n d"]) -> float:
    """1 - |mean of the unit vectors|^2: 1 when they point everywhere, 0 when all are the same.

    >>> spread(torch.ones(5, 3) / 3**0.5) < 1e-6
    True
    """
    return 1.0 - float(x.mean(0).square().sum())
