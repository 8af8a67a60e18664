"""Masks relu(s) with the gradient of s (straight-through estimator, Bengio et al., 2013, arXiv:1308.3432).

The gradient is not cut at 0, so an entry comes back if its gradient is below 0. See ``divconq.masks.activations``
for the losses of which it is never below 0.
"""

from jaxtyping import Float
from torch import Tensor


def forward(s: Float[Tensor, "k d"]) -> Float[Tensor, "k d"]:
    """Return relu(s). Its gradient is that of s.

    >>> import torch
    >>> s = torch.tensor([[-1.0, 2.0]], requires_grad=True)
    >>> forward(s).sum().backward(); s.grad.tolist()
    [[1.0, 1.0]]
    """
    return s + (s.relu() - s).detach()


def inverse(mask: Float[Tensor, "k d"]) -> Float[Tensor, "k d"]:
    """Return the mask itself."""
    return mask
