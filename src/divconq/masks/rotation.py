"""Rotating masks: disjoint blocks of dimensions that are given to the clusters anew."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

STREAM = 1  # batches of the epoch are drawn from (seed, epoch) alone


def rotated(blocks: Float[Tensor, "k d"], *, seed: int, epoch: int) -> Float[Tensor, "k d"]:
    """Return the blocks in the order of an epoch. It depends on ``(seed, epoch)`` only, not on the given order.

    >>> rotated(torch.eye(4), seed=0, epoch=1).argmax(1).tolist()
    [0, 3, 1, 2]
    >>> rotated(torch.eye(4).flip(0), seed=0, epoch=1).argmax(1).tolist()
    [0, 3, 1, 2]
    """
    by_position = blocks.argmax(1).argsort()
    order = torch.from_numpy(np.random.default_rng([seed, epoch, STREAM]).permutation(len(blocks)))
    return blocks[by_position[order.to(blocks.device)]]
