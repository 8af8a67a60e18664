"""Learned masks: both children start as copies of their parent (paper, section 3.1.2)."""

import torch
from jaxtyping import Float
from torch import Tensor


def split(parents: Float[Tensor, "k d"], *, noise: float, seed: int) -> Float[Tensor, "two_k d"]:
    """Return two copies of every mask.

    Equal masks are a stationary point of L_s. ``noise`` e separates them: in each dimension one copy is multiplied
    by 1 + e and the other by 1 - e, in an order drawn by ``seed``.

    >>> split(torch.ones(1, 3), noise=0.0, seed=0).tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """
    children = parents.repeat_interleave(2, dim=0)
    if not noise:
        return children
    draw = torch.Generator().manual_seed(seed + len(parents))
    signs = torch.randint(2, parents.shape, generator=draw) * 2.0 - 1
    return children * (1 + noise * torch.stack([signs, -signs], 1).flatten(0, 1).to(children))
