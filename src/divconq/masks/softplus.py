"""Masks softplus(s) = log(1 + exp(s)). An entry is always above 0, so it always has a gradient.

Weight decay pulls s to 0, and therefore the mask to log 2.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def forward(s: Float[Tensor, "k d"]) -> Float[Tensor, "k d"]:
    """Return softplus(s).

    >>> round(forward(torch.tensor([[0.0]])).item(), 4)
    0.6931
    """
    return F.softplus(s)


def inverse(mask: Float[Tensor, "k d"]) -> Float[Tensor, "k d"]:
    """Return s = log(exp(mask) - 1), computed without overflow. A mask of 1 has the parameter log(e - 1).

    >>> round(inverse(torch.tensor([[1.0]])).item(), 4)
    0.5413
    """
    mask = mask.clamp(min=torch.finfo(mask.dtype).tiny)  # 0 has no parameter
    return mask + torch.log(-torch.expm1(-mask))
