"""Select one negative for each (anchor, positive) pair, without a loop.

The m columns are the images that the n anchors are compared with: those of the batch, or keys. Each function returns
an n x m matrix. Only the entries of positive pairs have a meaning.
"""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor


@torch.no_grad()
def distance_weighted(
    distances: Float[Tensor, "n m"],
    negatives: Bool[Tensor, "n m"],
    uniform: Float[Tensor, "n m"],
    dim: int,
    cutoff: Float[Tensor, " n"],
    nearest: float = 0.5,
) -> tuple[Int64[Tensor, "n m"], Bool[Tensor, "n m"]]:
    """Draw a negative for each pair with weight ``1 / q(d)``. Return its index, and whether one exists.

    Only negatives closer than the ``cutoff`` of the anchor are drawn. ``uniform`` in [0, 1) selects the negative.
    Distances below ``nearest`` count as ``nearest``.
    Wu et al., Sampling Matters in Deep Embedding Learning, 2017.

    >>> d = torch.tensor([[0.0, 0.3, 0.9], [0.3, 0.0, 1.5], [0.9, 1.5, 0.0]])
    >>> negatives = torch.tensor([[False, False, True], [False, False, True], [True, True, False]])
    >>> index, drawn = distance_weighted(d, negatives, torch.full((3, 3), 0.5), dim=8, cutoff=torch.full((3,), 1.4))
    >>> index[0, 1].item(), drawn[0, 1].item(), drawn[1, 0].item()
    (2, True, False)
    """
    candidates, log_weights = _weighted_candidates(distances, negatives, dim, cutoff, nearest)
    weights = log_weights.softmax(1)
    cumulative = weights.cumsum(1)
    # The first entry above the target. Rounding, or a row without candidates, may select a non-candidate.
    index = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
    index = index.clamp(max=distances.shape[1] - 1)
    return index, candidates.gather(1, index)


@torch.no_grad()
def distance_weighted_without_replacement(
    distances: Float[Tensor, "n m"],
    positives: Bool[Tensor, "n m"],
    negatives: Bool[Tensor, "n m"],
    uniform: Float[Tensor, "n m"],
    dim: int,
    cutoff: Float[Tensor, " n"],
    nearest: float = 0.5,
) -> tuple[Int64[Tensor, "n m"], Bool[Tensor, "n m"]]:
    """Draw like ``distance_weighted``, but a different negative for each positive of an anchor.

    Positives beyond the number of candidates get none. With Gumbel noise g, the largest of ``log w + g`` is a draw
    with weights w, and the next largest are further draws without replacement.

    >>> d = torch.tensor([[0.0, 0.3, 0.3, 0.6, 0.9]])
    >>> positives, negatives = torch.tensor([[[0, 1, 1, 0, 0]], [[0, 0, 0, 1, 1]]]).bool()
    >>> index, drawn = distance_weighted_without_replacement(
    ...     d, positives, negatives, torch.full((1, 5), 0.5), dim=8, cutoff=torch.tensor([1.4])
    ... )
    >>> index[0, 1:3].tolist()
    [3, 4]
    """
    candidates, log_weights = _weighted_candidates(distances, negatives, dim, cutoff, nearest)
    tiny = torch.finfo(uniform.dtype).tiny
    gumbel = -(-uniform.clamp(min=tiny).log()).clamp(min=tiny).log()
    keys = (log_weights + gumbel).masked_fill(~candidates, -torch.inf)
    order = keys.topk(keys.shape[1], dim=1).indices  # equals sort, which takes a minute to compile
    place = (positives.cumsum(1) - 1).clamp(min=0)  # number of each positive among those of its anchor
    index = order.gather(1, place)
    return index, candidates.gather(1, index)


def _weighted_candidates(
    distances: Float[Tensor, "n m"],
    negatives: Bool[Tensor, "n m"],
    dim: int,
    cutoff: Float[Tensor, " n"],
    nearest: float,
) -> tuple[Bool[Tensor, "n m"], Float[Tensor, "n m"]]:
    """Return which negatives may be drawn, and the logarithms of their weights."""
    candidates = negatives & (distances < cutoff[:, None])
    log_weights = -log_density(distances.clamp(min=nearest), dim)
    return candidates, log_weights.masked_fill(~candidates, torch.finfo(distances.dtype).min)


def log_density(d: Float[Tensor, "*shape"], dim: int) -> Float[Tensor, "*shape"]:
    """Return ``log q(d) = (D - 2) log d + (D - 3) / 2 log(1 - d^2 / 4)``, up to a constant.

    ``q`` is the density of the distance between two random points of the unit sphere in D dimensions.

    >>> log_density(torch.tensor([1.0, 2.0**0.5]), dim=3)
    tensor([0.0000, 0.3466])
    """
    height = (1 - d.square() / 4).clamp(min=torch.finfo(d.dtype).eps)
    return (dim - 2) * d.log() + (dim - 3) / 2 * height.log()


@torch.no_grad()
def semi_hard(distances: Float[Tensor, "n m"], negatives: Bool[Tensor, "n m"]) -> Int64[Tensor, "n m"]:
    """Return for each pair the nearest negative that is farther than the positive, else the farthest negative.

    Squared distances give the same result. Schroff et al., FaceNet, 2015.

    >>> d = torch.tensor([[0.0, 0.5, 0.3, 0.9, 0.7]])
    >>> semi_hard(d, torch.tensor([[False, False, True, True, True]]))[0, 1].item()
    4
    """
    ordered, order = distances.masked_fill(~negatives, torch.inf).sort(dim=1, stable=True)
    place = torch.searchsorted(ordered, distances, right=True)
    farthest = negatives.sum(1, keepdim=True) - 1
    return order.gather(1, place.minimum(farthest).clamp(min=0))
