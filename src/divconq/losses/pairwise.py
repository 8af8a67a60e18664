"""What holds between every two rows of a batch: similarity, distance, same class or not."""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor


def similarities(x: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """``s_ij = <x_i, x_j>``, computed in the dtype of ``x`` even where autocast would lower it.

    >>> similarities(torch.tensor([[1.0, 0.0], [0.6, 0.8]]))[0]
    tensor([1.0000, 0.6000])
    """
    with torch.autocast(x.device.type, enabled=False):
        return x @ x.T


def squared_distances(x: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """``|x_i - x_j|^2 = |x_i|^2 + |x_j|^2 - 2 <x_i, x_j>``.

    Where this is below its own rounding error the two are the same point: value and gradient are 0.

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
    """``|x_i - x_j|``, with gradient 0 where the two are the same point.

    >>> distances(torch.tensor([[3.0, 0.0], [0.0, 4.0], [0.0, 4.0]]))[0]
    tensor([0., 5., 5.])
    """
    d2 = squared_distances(x)
    same = d2 == 0
    return d2.masked_fill(same, 1.0).sqrt().masked_fill(same, 0.0)


def pair_masks(labels: Int64[Tensor, " n"]) -> tuple[Bool[Tensor, "n n"], Bool[Tensor, "n n"]]:
    """Mark the ordered (anchor, positive) and (anchor, negative) pairs of anchors that take part.

    An anchor takes part if the batch holds another image of its class and an image of another class.

    >>> positives, negatives = pair_masks(torch.tensor([0, 0, 1]))
    >>> positives.nonzero().tolist(), negatives.nonzero().tolist()
    ([[0, 1], [1, 0]], [[0, 2], [1, 2]])
    """
    same = labels[:, None] == labels[None, :]
    positives = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    takes_part = positives.any(1, keepdim=True) & ~same.all(1, keepdim=True)
    return positives & takes_part, ~same & takes_part


def mean_of_nonzero(
    terms: Float[Tensor, "..."], weights: Float[Tensor, "..."] | None = None
) -> Float[Tensor, ""]:
    """The mean of those non-negative terms that are above 0, each with its weight, if there are any; 0 if none is.

    >>> mean_of_nonzero(torch.tensor([0.0, 1.0, 0.0, 3.0]))
    tensor(2.)
    >>> mean_of_nonzero(torch.tensor([0.0, 1.0, 3.0]), torch.tensor([4.0, 3.0, 1.0]))
    tensor(1.5000)
    """
    if weights is None:
        return terms.sum() / (terms > 0).sum().clamp(min=1)
    above = ((terms > 0) * weights).sum()
    return (terms * weights).sum() / above.where(above > 0, 1.0)
