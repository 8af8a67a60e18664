"""Names for new clusters: those of the old clusters they overlap most."""

import torch
from jaxtyping import Int64
from torch import Tensor

from divconq.division.partition import check_labels


def match(new: Int64[Tensor, " n"], old: Int64[Tensor, " n"], k: int) -> Int64[Tensor, " n"]:
    """Rename the ``k`` clusters of ``new`` after the clusters of ``old``.

    Cluster i takes the name p(i), p the permutation that maximises Σ_i IoU(new_i, old_{p(i)}).

    >>> match(torch.tensor([2, 2, 0, 1]), torch.tensor([0, 0, 1, 2]), k=3).tolist()
    [0, 0, 1, 2]
    """
    from scipy.optimize import linear_sum_assignment

    if len(new) != len(old):
        raise ValueError(f"new and old must label the same images, got {len(new)} and {len(old)} labels")
    check_labels("new", new, k)
    check_labels("old", old, k)
    overlap = torch.bincount(new.cpu() * k + old.cpu(), minlength=k * k).view(k, k)
    union = overlap.sum(1, keepdim=True) + overlap.sum(0) - overlap
    iou = overlap.double() / union.clamp(min=1)
    _, names = linear_sum_assignment(iou.numpy(), maximize=True)
    return torch.from_numpy(names).to(new)[new]
