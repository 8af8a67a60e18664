"""Coordinated Local Metric Learning: a mixture of linear embedding layers, a baseline without division."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

PCA_DIM = 64  # dimensions in which the mixture is fitted, as in the paper


class Mixture(NamedTuple):
    """A Gaussian mixture with diagonal covariances, in the principal components z of the unit features.

    z = ``axes`` (h / |h| - ``centre``). Component k has the weight exp(``log_weights[k]``), the mean ``means[k]`` and
    the standard deviations 1 / ``precisions[k]``.
    """

    centre: Float[Tensor, " c"]
    axes: Float[Tensor, "p c"]
    log_weights: Float[Tensor, " k"]
    means: Float[Tensor, "k p"]
    precisions: Float[Tensor, "k p"]

    @classmethod
    def unfitted(cls, features: int, k: int) -> "Mixture":
        """Return ``k`` equal components: each has the posterior 1 / k everywhere.

        >>> Mixture.unfitted(100, 4).posterior(torch.rand(1, 100))
        tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
        """
        means = torch.zeros(k, PCA_DIM)
        axes, weights = torch.zeros(PCA_DIM, features), torch.full((k,), -math.log(k))
        return cls(torch.zeros(features), axes, weights, means, torch.ones_like(means))

    @torch.no_grad()
    def posterior(self, h: Float[Tensor, "n c"]) -> Float[Tensor, "n k"]:
        """Return q_k(h) = pi_k N(z; mean_k, var_k) / sum_j pi_j N(z; mean_j, var_j) of each row.

        It is computed in float32 or better, and has no gradient.
        """
        with torch.autocast(h.device.type, enabled=False):
            h = h.float() if h.dtype in (torch.bfloat16, torch.float16) else h
            z = (F.normalize(h) - self.centre) @ self.axes.T
            distances = ((z[:, None] - self.means) * self.precisions).square().sum(2)
            return (self.log_weights + self.precisions.log().sum(1) - distances / 2).softmax(1)

    def clusters(self, h: Float[Tensor, "n c"]) -> Int64[Tensor, " n"]:
        """Return the component with the largest posterior of each row, on the CPU."""
        rows = max(1, (1 << 24) // self.means.numel())  # limits the memory of the distances
        return torch.cat([self.posterior(some).argmax(1) for some in h.split(rows)]).cpu()

    def renumbered(self, numbers: Int64[Tensor, " k"]) -> "Mixture":
        """Return the mixture in which component i has the number ``numbers[i]``."""
        order = numbers.argsort().to(self.means.device)
        parts = (self.log_weights, self.means, self.precisions)
        return Mixture(self.centre, self.axes, *(part[order] for part in parts))


class CLMLHead(nn.Module):
    """f(h) = sum_k q_k(h) (W_k h + b_k): a linear layer for each component of a Gaussian mixture (table 9).

    q_k(h) is the posterior of component k. The mixture is fitted to the features of the training images
    (``divconq.training.mixture``) and kept in buffers. The gradient goes through the projections and through h, not
    through q: as in the reference, the mixture is not trained by the loss. All W_k start with the same values, so
    f starts as one linear layer. The global projection of the reference is the common part of the W_k, as the q_k add
    up to 1. Dropout acts on the input of the projections only.

    Reference: Saxena and Verbeek, Coordinated local metric learning, ICCV Workshops 2015, as modified in the
    supplement of Sanakoyeu et al., TPAMI 2021.

    >>> head = CLMLHead(features=100, dim=8, k=4)
    >>> head(torch.rand(2, 100)).shape
    torch.Size([2, 8])
    """

    centre: Tensor
    axes: Tensor
    log_weights: Tensor
    means: Tensor
    precisions: Tensor

    def __init__(self, features: int, dim: int, k: int, dropout: float = 0.0) -> None:
        super().__init__()
        if features < PCA_DIM:
            raise ValueError(
                f"head 'clml' projects the features of the backbone to {PCA_DIM} dimensions, got {features} features; "
                f"use a backbone with at least {PCA_DIM} features, or --head linear"
            )
        first = nn.Linear(features, dim)
        self.weight = nn.Parameter(first.weight.detach().repeat(k, 1, 1))
        self.bias = nn.Parameter(first.bias.detach().repeat(k, 1))
        self.dropout = nn.Dropout(dropout)
        mixture = Mixture.unfitted(features, k)
        for name, value in mixture._asdict().items():
            self.register_buffer(name, value)

    @property
    def mixture(self) -> Mixture:
        """Return the mixture that the posteriors come from."""
        return Mixture(self.centre, self.axes, self.log_weights, self.means, self.precisions)

    @torch.no_grad()
    def set_mixture_(self, mixture: Mixture) -> None:
        """Copy a mixture into the buffers, in place."""
        for own, new in zip(self.mixture, mixture, strict=True):
            own.copy_(new)

    def forward(self, h: Float[Tensor, "n c"]) -> Float[Tensor, "n d"]:
        """Return the raw embeddings of features."""
        k, dim = self.bias.shape
        projected = F.linear(self.dropout(h), self.weight.flatten(0, 1), self.bias.flatten()).view(-1, k, dim)
        return (self.mixture.posterior(h)[:, :, None] * projected).sum(1)
