"""Masks that are their parameter, kept at 0 or above by a projection after every step of the optimiser.

The gradient is not cut at 0 (projected gradient descent), so an entry comes back if its gradient is below 0. See
``divconq.masks.activations`` for the losses of which it is never below 0.
"""

from jaxtyping import Float
from torch import Tensor


def forward(s: Float[Tensor, "k d"]) -> Float[Tensor, "k d"]:
    """Return s. ``Masks.project_`` keeps it at 0 or above.

    >>> import torch
    >>> forward(torch.tensor([[0.0, 2.0]])).tolist()
    [[0.0, 2.0]]
    """
    return s


def inverse(mask: Float[Tensor, "k d"]) -> Float[Tensor, "k d"]:
    """Return the mask itself."""
    return mask
