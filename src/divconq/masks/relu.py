"""The paper's masks: relu(s). An entry at 0 gets no gradient, so it stays at 0."""

from jaxtyping import Float
from torch import Tensor


def forward(s: Float[Tensor, "k d"]) -> Float[Tensor, "k d"]:
    """Return relu(s).

    >>> import torch
    >>> forward(torch.tensor([[-1.0, 2.0]])).tolist()
    [[0.0, 2.0]]
    """
    return s.relu()


def inverse(mask: Float[Tensor, "k d"]) -> Float[Tensor, "k d"]:
    """Return the mask itself."""
    return mask
