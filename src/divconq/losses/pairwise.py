"""Matrices over all pairs of a batch, or of a batch and keys: similarity, distance, same class or not."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

EMPTY = -1  # the label of a place without an image


class Keys(NamedTuple):
    """Images that the anchors of a batch are compared with, instead of the batch itself. ``EMPTY`` labels do not count.

    >>> keys = Keys(torch.zeros(2, 4), torch.tensor([3, EMPTY]))
    >>> pair_masks(torch.tensor([3]), keys.labels)[0].tolist()
    [[False, False]]
    """

    embeddings: Float[Tensor, "m d"]
    labels: Int64[Tensor, " m"]


def similarities(x: Float[Tensor, "n d"], y: Float[Tensor, "m d"] | None = None) -> Float[Tensor, "n m"]:
    """Return ``s_ij = <x_i, y_j>``, computed in the dtype of ``x``, even under autocast. By default ``y`` is ``x``.

    >>> similarities(torch.tensor([[1.0, 0.0], [0.6, 0.8]]))[0]
    tensor([1.0000, 0.6000])
    """
    with torch.autocast(x.device.type, enabled=False):
        return x @ (x if y is None else y).T


def squared_distances(x: Float[Tensor, "n d"], y: Float[Tensor, "m d"] | None = None) -> Float[Tensor, "n m"]:
    """Return ``|x_i - y_j|^2 = |x_i|^2 + |y_j|^2 - 2 <x_i, y_j>``. By default ``y`` is ``x``.

    If this is below its rounding error, the two points count as equal: value and gradient are 0.

    >>> squared_distances(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]))
    tensor([[0., 2., 2.],
            [2., 0., 0.],
            [2., 0., 0.]])
    """
    squares = x.square().sum(1)
    others = squares if y is None else y.square().sum(1)
    size = squares[:, None] + others[None, :]
    d2 = size - 2 * similarities(x, y)
    return d2.masked_fill(d2 <= 16 * torch.finfo(x.dtype).eps * size, 0.0)


def distances(x: Float[Tensor, "n d"], y: Float[Tensor, "m d"] | None = None) -> Float[Tensor, "n m"]:
    """Return ``|x_i - y_j|``, with gradient 0 where the two points are equal. By default ``y`` is ``x``.

    >>> distances(torch.tensor([[3.0, 0.0], [0.0, 4.0], [0.0, 4.0]]))[0]
    tensor([0., 5., 5.])
    """
    d2 = squared_distances(x, y)
    same = d2 == 0
    return d2.masked_fill(same, 1.0).sqrt().masked_fill(same, 0.0)


def all_pairs(
    labels: Int64[Tensor, " n"], others: Int64[Tensor, " m"] | None = None
) -> tuple[Bool[Tensor, "n m"], Bool[Tensor, "n m"]]:
    """Return the masks of all ordered pairs of one class, and of all pairs of two classes.

    With ``others``, the labels of keys, the pairs are those of an image and a key.

    >>> positives, negatives = all_pairs(torch.tensor([0, 0, 1]))
    >>> positives.nonzero().tolist(), negatives.nonzero().tolist()
    ([[0, 1], [1, 0]], [[0, 2], [1, 2], [2, 0], [2, 1]])
    """
    if others is not None:
        same = labels[:, None] == others[None, :]
        return same, ~same & (others >= 0)
    same = labels[:, None] == labels[None, :]
    return same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device), ~same


def pair_masks(
    labels: Int64[Tensor, " n"], others: Int64[Tensor, " m"] | None = None
) -> tuple[Bool[Tensor, "n m"], Bool[Tensor, "n m"]]:
    """Return the masks of all ordered (anchor, positive) and (anchor, negative) pairs that count.

    An anchor counts if the batch, or the keys, hold another image of its class and an image of another class.

    >>> positives, negatives = pair_masks(torch.tensor([0, 0, 1]))
    >>> positives.nonzero().tolist(), negatives.nonzero().tolist()
    ([[0, 1], [1, 0]], [[0, 2], [1, 2]])
    """
    positives, negatives = all_pairs(labels, others)
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
