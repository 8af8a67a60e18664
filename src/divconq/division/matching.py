"""Matching: new clusters take the numbers of the old clusters they overlap most (paper, equation 2)."""

import torch
from jaxtyping import Int64
from torch import Tensor

from divconq.division.partition import check_clusters


def match(new: Int64[Tensor, " n"], old: Int64[Tensor, " n"], k: int) -> Int64[Tensor, " n"]:
    """Return ``new`` with its ``k`` clusters renumbered to match those of ``old``.

    Cluster i becomes p(i), where the permutation p maximises Σ_i IoU(new_i, old_{p(i)}).

    >>> match(torch.tensor([2, 2, 0, 1]), torch.tensor([0, 0, 1, 2]), k=3).tolist()
    [0, 0, 1, 2]
    """
    return renumbering(new, old, k).to(new)[new]


def renumbering(new: Int64[Tensor, " n"], old: Int64[Tensor, " n"], k: int) -> Int64[Tensor, " k"]:
    """Return the permutation p of ``match``: cluster i of ``new`` becomes p(i).

    >>> renumbering(torch.tensor([2, 2, 0, 1]), torch.tensor([0, 0, 1, 2]), k=3).tolist()
    [1, 2, 0]
    """
    from scipy.optimize import linear_sum_assignment

    if len(new) != len(old):
        raise ValueError(
            f"new and old must be partitions of the same images, got {len(new)} and {len(old)} images"
        )
    check_clusters("new", new, k)
    check_clusters("old", old, k)
    overlap = torch.bincount(new.cpu() * k + old.cpu(), minlength=k * k).view(k, k)
    union = overlap.sum(1, keepdim=True) + overlap.sum(0) - overlap
    iou = overlap.double() / union.clamp(min=1)
    _, numbers = linear_sum_assignment(iou.numpy(), maximize=True)
    return torch.from_numpy(numbers)
