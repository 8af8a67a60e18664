"""The embedding space: its effective dimension, the spread of its classes, and its uniformity.

The searches ``neighbours``, ``nearest_same`` and ``nearest_other`` are costly. The measures here take their results
as arguments, so each search runs once.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from scipy.integrate import fixed_quad
from scipy.special import betaincinv
from torch import Tensor

from divconq.analysis.measures.nearest import rows_per_block
from divconq.division.lloyd import check_points
from divconq.division.partition import check_clusters

CONSTANT = 1e-24  # a variance below this share of the mean square is a rounding error
NODES = 256  # of the Gauss-Legendre quadrature


def effective_dimension(x: Float[Tensor, "n d"], share: float = 0.95) -> int | None:
    """Return how many principal components hold ``share`` of the variance.

    This is min m: Σ_{i≤m} λ_i ≥ share Σ_i λ_i, where λ are the eigenvalues of the covariance in descending order. It
    is None without points and 0 if all points are equal. See the paper's section 4.3, "Subspace learning".

    >>> effective_dimension(torch.tensor([[9.0, 0.0, 1.0], [-9.0, 0.0, 1.0], [0.0, 0.5, 1.0]]))
    1
    """
    check_points(x)
    if not 0 < share <= 1:
        raise ValueError(f"share must be above 0 and at most 1, got {share}; use 0.95")
    if len(x) == 0:
        return None
    mean, scatter = x.mean(0, dtype=torch.float64), x.new_zeros(x.shape[1], x.shape[1], dtype=torch.float64)
    squares = 0.0
    for block in x.split(rows_per_block(8 * x.shape[1])):
        centred = block.double() - mean
        scatter += centred.T @ centred
        squares += float(block.double().square().sum())
    variance = torch.linalg.eigvalsh(scatter).flip(0).clamp(min=0).cumsum(0)
    total = float(variance[-1])
    if total <= CONSTANT * squares:
        return 0
    return int((variance < (share - 1e-12) * total).sum()) + 1


def effective_dimensions(
    f: Float[Tensor, "n d"],
    clusters: Int64[Tensor, " n"],
    masks: Float[Tensor, "k d"],
    share: float = 0.95,
) -> list[int | None]:
    """Return the effective dimension of every cluster in its subspace, normalize(f(x) * relu(s_k)) for x in cluster k.

    It is None for an empty cluster. See the paper's section 4.3, "Subspace learning", and figure "Effective manifold
    dimensionality" (iii), which shows the mean.

    >>> f = torch.tensor([[1.0, 0.0, 3.0], [0.0, 1.0, 5.0], [2.0, 2.0, 0.0]])
    >>> effective_dimensions(f, torch.tensor([0, 0, 2]), torch.tensor([[1.0, 1.0, 0.0]] * 3))
    [1, None, 0]
    """
    check_clusters("clusters", clusters, len(masks))
    members = (clusters == k for k in range(len(masks)))
    return [
        effective_dimension(F.normalize(f[rows] * mask.relu()), share)
        for rows, mask in zip(members, masks, strict=True)
    ]


@dataclass(frozen=True)
class Variances:
    """The variance within classes, and the variance of the class means; their sum is the variance of all points."""

    intra: float
    inter: float


def class_variances(x: Float[Tensor, "n d"], labels: Int64[Tensor, " n"]) -> Variances:
    """Return the intra-class variance (1/n) Σ_i |x_i - m_{y(i)}|² and the inter-class (1/n) Σ_i |m_{y(i)} - m|².

    m_y is the mean of class y, and m the mean of all points. Every image has the same weight. Both are NaN without
    points. The paper shows both in section 4.3, "Division frequency and the number of sub-problems", without a
    formula.

    >>> class_variances(torch.tensor([[0.0], [2.0], [5.0], [5.0]]), torch.tensor([0, 0, 1, 1]))
    Variances(intra=0.5, inter=4.0)
    """
    check_points(x)
    if len(x) == 0:
        return Variances(math.nan, math.nan)
    names, place, counts = labels.unique(return_inverse=True, return_counts=True)
    sums = x.new_zeros(len(names), x.shape[1], dtype=torch.float64)
    rows = rows_per_block(8 * x.shape[1])
    for block, classes in zip(x.split(rows), place.split(rows), strict=True):
        sums.index_add_(0, classes, block.double())
    means = sums / counts[:, None]
    intra = sum(
        float((block.double() - means[classes]).square().sum())
        for block, classes in zip(x.split(rows), place.split(rows), strict=True)
    )
    around = (means - sums.sum(0) / len(x)).square().sum(1)
    return Variances(intra / len(x), float((around * counts).sum()) / len(x))


def positive_negative_ratio(same: Float[Tensor, " n"], other: Float[Tensor, " n"]) -> float:
    """Return the mean ratio (1/n) Σ_i same_i / other_i of the distances to the nearest positive and negative.

    ``same`` and ``other`` come from ``nearest_same`` and ``nearest_other``. Images without a positive or a negative,
    and images with a copy in another class (other_i = 0), are left out. The ratio is NaN if no image is left. See the
    paper's section 4.3, "Division frequency and the number of sub-problems".

    >>> positive_negative_ratio(torch.tensor([1.0, 3.0, float("nan")]), torch.tensor([2.0, 2.0, 2.0]))
    1.0
    """
    counted = same.isfinite() & (other > 0)
    return float((same[counted].double() / other[counted].double()).mean())


def expected_distance(found: Float[Tensor, "n m"], k: int) -> float:
    """Return ED_k, the mean distance to the k nearest neighbours: (1/n) Σ_i (1/k) Σ_{j≤k} |x_i - x_(j)|.

    ``found`` holds the distances to the neighbours, the nearest first. ED_k is NaN if there are fewer than k. See the
    paper's section 4.3, "Division frequency and the number of sub-problems", and supplement "UMAP visualization".

    >>> expected_distance(torch.tensor([[1.0, 3.0], [2.0, 4.0]]), k=1)
    1.5
    """
    return math.nan if found.shape[1] < k else float(found[:, :k].double().mean())


def expected_distance_on_sphere(n: int, d: int, k: int) -> float:
    """Return ED_k of ``n`` independent points with a uniform distribution on the unit sphere of R^d.

    The squared distance of two points is 4 B with B ~ Beta((d-1)/2, (d-1)/2). The j-th smallest of n - 1 uniform
    numbers has the distribution Beta(j, n-j). Therefore E|x_i - x_(j)| = ∫_0^1 2 √F_B⁻¹(F_j⁻¹(p)) dp. ED_k is NaN if
    n ≤ k or d < 2. The paper's supplement, "UMAP visualization", gives 1.275 and 1.290.

    >>> [round(expected_distance_on_sphere(60_502, 512, k), 3) for k in (1, 10)]
    [1.275, 1.29]
    """
    if k < 1 or n <= k or d < 2:
        return math.nan
    half, j = (d - 1) / 2, np.arange(1, k + 1)[:, None]
    mean, _ = fixed_quad(
        lambda p: 2 * np.sqrt(betaincinv(half, half, betaincinv(j, n - j, p))), 0, 1, n=NODES
    )
    return float(mean.mean())


def hubness(ranking: Int64[Tensor, "q k"], found: int, of: int | None = None) -> float:
    """Return the skewness E[(N - EN)³] / Var(N)^{3/2}, where N counts how often an image is among the k nearest.

    It is 0 if each of the ``found`` images is found equally often. A large value means that a few hubs are near to
    everything. It is NaN without neighbours. If the q queries are a sample of ``of`` queries, N counts all of them,
    and its raw moments are estimated without bias. It measures the "high-density hubs" of the paper's section 4.3
    and supplement "UMAP visualization".

    >>> round(hubness(torch.tensor([[1], [0], [0], [0]]), found=4), 3)
    0.816
    """
    if ranking.numel() == 0 or found == 0:
        return math.nan
    mean, variance, third = _central_moments(ranking, found, len(ranking) if of is None else of)
    return third / variance**1.5 if variance > 1e-12 * mean else 0.0


def _central_moments(ranking: Int64[Tensor, "q k"], found: int, of: int) -> tuple[float, float, float]:
    """Return the mean, variance and third central moment of N, how often ``of`` queries find an image.

    The ranking has q of these queries, and S of them find the image. Over all samples of q queries,
    E[S(S-1)..(S-r+1)] / q(q-1)..(q-r+1) = N(N-1)..(N-r+1) / of(of-1)..(of-r+1). scipy.stats has no estimator for
    such samples; without sampling the result is that of scipy.stats.skew.
    """
    times, q = ranking[ranking >= 0].bincount(minlength=found).double(), len(ranking)
    falling, product, scale = [], torch.ones_like(times), 1.0
    for r in range(3):
        product = product * (times - r)
        scale *= (of - r) / (q - r) if q > r else 0.0
        falling.append(float(product.mean()) * scale)
    first, second, third = falling[0], falling[1] + falling[0], falling[2] + 3 * falling[1] + falling[0]
    return first, second - first**2, third - 3 * first * second + 2 * first**3
