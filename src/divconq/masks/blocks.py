"""Fixed masks: disjoint blocks of dimensions; a split halves the parent's block."""

import torch
from jaxtyping import Float
from torch import Tensor


def split(parents: Float[Tensor, "k d"], *, noise: float, seed: int) -> Float[Tensor, "two_k d"]:
    """Return the first and the second half of every block.

    >>> split(torch.ones(1, 3), noise=0.0, seed=0).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]
    """
    children = parents.repeat_interleave(2, dim=0)
    position = children.cumsum(1)
    first = position <= (children.sum(1, keepdim=True) / 2).floor()
    left = torch.arange(len(children), device=children.device)[:, None] % 2 == 0
    return children * torch.where(left, first, ~first)
