"""Matrices over all pairs of a batch: similarity, distance, same class or not."""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor


def similarities(x: Float[Tensor, "n d"], y: Float[Tensor, "m d"] | None = None) -> Float[Tensor, "n m"]:
    """Return ``s_ij = <x_i, y_j>``, computed in the dtype of ``x``, even under autocast. By default ``y`` is ``x``.

    >>> similarities(torch.tensor([[1.0, 0.0], [0.6, 0.8]]))[0]
    tensor([1.0000, 0.6000])
    """
    with torch.autocast(x.device.type, enabled=False):
        return x @ (x if y is None else y).T


def squared_distances(x: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """Return ``|x_i - x_j|^2 = |x_i|^2 + |x_j|^2 - 2 <x_i, x_j>``.

    If this is below its rounding error, the two points count as equal: value and gradient are 0.

    >>> squared_distances(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]))
    tensor([[0., 2., 2.],
            [2., 0., 0.],
            [2., 0., 0.]])
    """
    squares = x.square().sum(1)
    size = squares[:, None] + squares[None, :]
    d2 = size - 2 * similarities(x)
    return d2.masked_fill(d2 <= 16 * torch.finfo(x.dtype).eps * size, 0.0)


def distances(x: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """Return ``|x_i - x_j|``, with gradient 0 where the two points are equal.

    >>> distances(torch.tensor([[3.0, 0.0], [0.0, 4.0], [0.0, 4.0]]))[0]
    tensor([0., 5., 5.])
    """
    d2 = squared_distances(x)
    same = d2 == 0
    return d2.masked_fill(same, 1.0).sqrt().masked_fill(same, 0.0)


def all_pairs(labels: Int64[Tensor, " n"]) -> tuple[Bool[Tensor, "n n"], Bool[Tensor, "n n"]]:
    """Return the masks of all ordered pairs of one class, and of all pairs of two classes.

    >>> positives, negatives = all_pairs(torch.tensor([0, 0, 1]))
    >>> positives.nonzero().tolist(), negatives.nonzero().tolist()
    ([[0, 1], [1, 0]], [[0, 2], [1, 2], [2, 0], [2, 1]])
    """
    same = labels[:, None] == labels[None, :]
    return same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device), ~same


def pair_masks(labels: Int64[Tensor, " n"]) -> tuple[Bool[Tensor, "n n"], Bool[Tensor, "n n"]]:
    """Return the masks of all ordered (anchor, positive) and (anchor, negative) pairs that count.

    An anchor counts if the batch holds another image of its class and an image of another class.

    >>> positives, negatives = pair_masks(torch.tensor([0, 0, 1]))
    >>> positives.nonzero().tolist(), negatives.nonzero().tolist()
    ([[0, 1], [1, 0]], [[0, 2], [1, 2]])
    """
    positives, negatives = all_pairs(labels)
    counts = positives.any(1, keepdim=True) & negatives.any(1, keepdim=True)
    return positives & counts, negatives & counts


def log_one_plus_sum_exp(
    x: Float[Tensor, "n m"], counts: Bool[Tensor, "n m"], dim: int
) -> Float[Tensor, " some"]:
    """Return ``log(1 + sum exp(x))`` over the entries of each row or column that count; 0 if there are none.

    >>> log_one_plus_sum_exp(torch.zeros(2, 3), torch.tensor([[True, True, True], [False] * 3]), dim=1)
    tensor([1.3863, 0.0000])
    """
    largest = x.masked_fill(~counts, torch.finfo(x.dtype).min).logsumexp(dim)
    return largest.logaddexp(x.new_zeros(()))


def mean_of_nonzero(
    terms: Float[Tensor, "..."], weights: Float[Tensor, "..."] | None = None
) -> Float[Tensor, ""]:
    """Return the mean, with optional weights, of the non-negative terms that are above 0; 0 if there are none.

    >>> mean_of_nonzero(torch.tensor([0.0, 1.0, 0.0, 3.0]))
    tensor(2.)
    >>> mean_of_nonzero(torch.tensor([0.0, 1.0, 3.0]), torch.tensor([4.0, 3.0, 1.0]))
    tensor(1.5000)
    """
    if weights is None:
        return terms.sum() / (terms > 0).sum().clamp(min=1)
    above = ((terms > 0) * weights).sum()
    return (terms * weights).sum() / above.where(above > 0, 1.0)
