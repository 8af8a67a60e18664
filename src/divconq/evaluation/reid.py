"""The protocol of vehicle re-identification: find the one gallery image of each identity."""

from statistics import fmean

import torch
from jaxtyping import Float, Int64
from torch import Generator, Tensor

from divconq.evaluation.retrieval import retrieval_scores


def one_gallery_image(
    embeddings: Float[Tensor, "n d"],
    labels: Int64[Tensor, " n"],
    *,
    draws: int = 10,
    seed: int = 0,
    ks: tuple[int, ...] = (1, 5),
) -> dict[str, float]:
    """Return the mean Recall@k over ``draws`` random galleries.

    Each gallery has one random image per identity. All other images search it.

    >>> x = torch.tensor([[0.0], [0.1], [5.0], [5.1], [9.0]])
    >>> one_gallery_image(x, torch.tensor([3, 3, 7, 7, 8]), ks=(1, 2))
    {'recall@1': 1.0, 'recall@2': 1.0}
    """
    if draws < 1:
        raise ValueError(f"draws must be at least 1, got {draws}; use 10")
    if len(labels.unique()) == len(labels):
        raise ValueError(
            f"at least one identity must have two images, got {len(labels)} identities of one image each; "
            "check the labels, or add images"
        )
    generator = torch.Generator().manual_seed(seed)
    labels = labels.to(embeddings.device)
    scores = []
    for _ in range(draws):
        gallery = torch.zeros_like(labels, dtype=torch.bool)
        gallery[draw_one_each(labels.cpu(), generator).to(labels.device)] = True
        query = ~gallery
        scores.append(
            retrieval_scores(embeddings[query], labels[query], embeddings[gallery], labels[gallery], ks)
        )
    return {name: fmean(score[name] for score in scores) for name in (f"recall@{k}" for k in ks)}


def draw_one_each(labels: Int64[Tensor, " n"], generator: Generator) -> Int64[Tensor, " c"]:
    """Return the index of one random image of each identity; all images of an identity are equally likely.

    >>> labels = torch.tensor([4, 4, 9])
    >>> labels[draw_one_each(labels, torch.Generator().manual_seed(0))].tolist()
    [4, 9]
    """
    order = torch.randperm(len(labels), generator=generator)
    order = order[labels[order].argsort(stable=True)]
    sizes = labels.unique(return_counts=True)[1]
    return order[sizes.cumsum(0) - sizes]
