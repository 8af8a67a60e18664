"""Matrices over all pairs of a batch: similarity, distance, same class or not."""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor


def similarities(x: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """Return ``s_ij = <x_i, x_j>``, computed in the dtype of ``x``, even under autocast.

    >>> similarities(torch.tensor([[1.0, 0.0], [0.6, 0.8]]))[0]
    tensor([1.0000, 0.6000])
    """
    with torch.autocast(x.device.type, enabled=False):
        return x @ x.T


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


def pair_masks(labels: Int64[Tensor, " n"]) -> tuple[Bool[Tensor, "n n"], Bool[Tensor, "n n"]]:
    """Return the masks of all ordered (anchor, positive) and (anchor, negative) pairs that count.

    An anchor counts if the batch holds another image of its class and an image of another class.

    >>> positives, negatives = pair_masks(torch.tensor([0, 0, 1]))
    >>> positives.nonzero().tolist(), negatives.nonzero().tolist()
    ([[0, 1], [1, 0]], [[0, 2], [1, 2]])
    """
    same = labels[:, None] == labels[None, :]
    positives = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    counts = positives.any(1, keepdim=True) & ~same.all(1, keepdim=True)
    return positives & counts, ~same & counts


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
