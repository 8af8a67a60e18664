"""The embedding space: the dimensions it uses, how classes lie in it, how evenly it is filled.

Three searches are costly, ``neighbours``, ``nearest_same`` and ``nearest_other``; what they find is handed on to the
measures, which are not.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from divconq.division.kmeans import check_points, exact_products
from divconq.division.partition import check_labels
from divconq.evaluation.neighbours import BUDGET, nearest

BLOCK = 1 << 26  # bytes that are copied at once
CONSTANT = 1e-24  # variance below this part of the mean square is rounding
NODES = 256  # of the quadrature


def effective_dimension(x: Float[Tensor, "n d"], share: float = 0.95) -> int | None:
    """How many principal components hold ``share`` of the variance; None without points, 0 if they are all equal.

    min m: Σ_{i≤m} λ_i ≥ share Σ_i λ_i, with λ the falling eigenvalues of the covariance. ED of the paper's
    section 4.3, "Subspace learning".

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
    for block in x.split(_rows(8 * x.shape[1])):
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
    """The effective dimension of every cluster in its own subspace, normalize(f(x) * relu(s_k)) for x in cluster k.

    None for an empty cluster. The paper's section 4.3, "Subspace learning", and figure "Effective manifold
    dimensionality" (iii), which shows their mean.

    >>> f = torch.tensor([[1.0, 0.0, 3.0], [0.0, 1.0, 5.0], [2.0, 2.0, 0.0]])
    >>> effective_dimensions(f, torch.tensor([0, 0, 2]), torch.tensor([[1.0, 1.0, 0.0]] * 3))
    [1, None, 0]
    """
    check_labels("clusters", clusters, len(masks))
    members = (clusters == k for k in range(len(masks)))
    return [
        effective_dimension(F.normalize(f[rows] * mask.relu()), share)
        for rows, mask in zip(members, masks, strict=True)
    ]


@dataclass(frozen=True)
class Variances:
    """The variance within classes, and that of their means; together they are the variance of all points."""

    intra: float
    inter: float


def class_variances(x: Float[Tensor, "n d"], labels: Int64[Tensor, " n"]) -> Variances:
    """Intra-class variance (1/n) Σ_i |x_i - m_{y(i)}|² and inter-class variance (1/n) Σ_i |m_{y(i)} - m|².

    m_y is the mean of class y, m that of all. Every image counts the same, so a class with one image has no
    variance within. NaN without points. The paper shows both in section 4.3, "Division frequency and the number
    of sub-problems", and gives no formula; these two add up to the variance of all points.

    >>> class_variances(torch.tensor([[0.0], [2.0], [5.0], [5.0]]), torch.tensor([0, 0, 1, 1]))
    Variances(intra=0.5, inter=4.0)
    """
    check_points(x)
    if len(x) == 0:
        return Variances(math.nan, math.nan)
    names, place, counts = labels.unique(return_inverse=True, return_counts=True)
    sums = x.new_zeros(len(names), x.shape[1], dtype=torch.float64)
    rows = _rows(8 * x.shape[1])
    for block, classes in zip(x.split(rows), place.split(rows), strict=True):
        sums.index_add_(0, classes, block.double())
    means = sums / counts[:, None]
    intra = sum(
        float((block.double() - means[classes]).square().sum())
        for block, classes in zip(x.split(rows), place.split(rows), strict=True)
    )
    around = (means - sums.sum(0) / len(x)).square().sum(1)
    return Variances(intra / len(x), float((around * counts).sum()) / len(x))


def neighbours(
    x: Float[Tensor, "n d"],
    k: int,
    *,
    gallery: Float[Tensor, "g d"] | None = None,
    queries: Int64[Tensor, " q"] | None = None,
    budget: int = BUDGET,
) -> Int64[Tensor, "m k"]:
    """Indices of the ``k`` nearest in the gallery (without one: among the other points), the nearest first.

    Only for the ``queries`` if these are named. Where there are fewer than k to find, fewer are found.

    >>> neighbours(torch.tensor([[0.0], [1.0], [3.0]]), k=5).tolist()
    [[1, 2], [0, 2], [1, 0]]
    """
    check_points(x)
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}; ask for one neighbour or more")
    searched = x if gallery is None else gallery
    asked = torch.arange(len(x), device=x.device) if queries is None else queries
    k = max(0, min(k, len(searched) - (gallery is None)))
    if k == 0 or len(asked) == 0:
        return torch.empty(len(asked), k, dtype=torch.int64, device=x.device)
    exclude = asked if gallery is None else None
    query = x if queries is None else x[queries]
    return torch.cat(list(nearest(query, searched, k, exclude=exclude, budget=budget)))


def distances(
    x: Float[Tensor, "q d"], gallery: Float[Tensor, "g d"], index: Int64[Tensor, "q k"]
) -> Float32[Tensor, "q k"]:
    """Distances |x_i - y_j| to the gallery images j that are named for each i; NaN for -1.

    >>> line = torch.tensor([[0.0], [1.0], [3.0]])
    >>> distances(line, line, neighbours(line, k=2)).tolist()
    [[1.0, 3.0], [1.0, 2.0], [2.0, 3.0]]
    """
    result = torch.full(index.shape, math.nan, device=x.device)
    if result.numel() == 0 or len(gallery) == 0:
        return result
    rows, start = _rows(8 * x.shape[1] * index.shape[1]), 0
    for some in index.split(rows):
        block = slice(start, start + len(some))
        difference = x[block, None].float() - gallery[some.clamp(min=0)].float()
        result[block] = difference.norm(dim=2).masked_fill(some < 0, math.nan)
        start += rows
    return result


def nearest_same(
    x: Float[Tensor, "n d"], labels: Int64[Tensor, " n"]
) -> tuple[Int64[Tensor, " n"], Float32[Tensor, " n"]]:
    """For each image the nearest other one of its class, and the distance; -1 and NaN where it is alone.

    >>> nearest_same(torch.tensor([[0.0], [1.0], [3.0], [9.0]]), torch.tensor([5, 5, 5, 2]))
    (tensor([ 1,  0,  1, -1]), tensor([1., 1., 2., nan]))
    """
    check_points(x)
    index = torch.full((len(x),), -1, device=x.device)
    points, order = x.detach().float(), labels.argsort(stable=True)
    sizes = labels.unique(return_counts=True)[1]
    starts = sizes.cumsum(0) - sizes
    for size in sizes[sizes > 1].unique().tolist():
        members = order[starts[sizes == size, None] + torch.arange(size, device=x.device)]
        for some in members.split(_rows(8 * size * (size + x.shape[1]))):
            index[some] = some.gather(1, _nearest_within(points[some]))
    return index, distances(x, x, index[:, None])[:, 0]


def nearest_other(
    x: Float[Tensor, "n d"],
    marks: Int64[Tensor, " n"],
    ranking: Int64[Tensor, "q k"] | None = None,
    *,
    queries: Int64[Tensor, " q"] | None = None,
    budget: int = BUDGET,
) -> tuple[Int64[Tensor, " q"], Float32[Tensor, " q"]]:
    """For each image the nearest one of another mark (class, or split), and the distance; -1 and NaN if none.

    Only for the ``queries`` if these are named. If the ``neighbours`` of each are known already, only those are
    searched whose neighbours all have its mark.

    >>> nearest_other(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([5, 5, 2]))
    (tensor([2, 2, 1]), tensor([3., 2., 2.]))
    """
    check_points(x)
    asked = torch.arange(len(x), device=x.device) if queries is None else queries
    own, index = marks[asked], torch.full((len(asked),), -1, device=x.device)
    if ranking is not None and ranking.shape[1]:
        differs = marks[ranking] != own[:, None]
        first = ranking.gather(1, differs.int().argmax(1, keepdim=True))[:, 0]
        index = first.masked_fill(~differs.any(1), -1)
    left = (index < 0).nonzero().flatten()
    if len(left) and len(marks.unique()) > 1:
        found = nearest(x[asked[left]], x, 1, exclude=own[left], marks=marks, budget=budget)
        index[left] = torch.cat(list(found))[:, 0]
    return index, distances(x[asked], x, index[:, None])[:, 0]


def positive_negative_ratio(same: Float[Tensor, " n"], other: Float[Tensor, " n"]) -> float:
    """Expected ratio of the distances to the nearest image of the same class and of another class.

    (1/n) Σ_i same_i / other_i, as ``nearest_same`` and ``nearest_other`` give them; images without the one or the
    other, or with a copy in another class (other_i = 0), are left out. NaN if none is left. The paper's
    section 4.3, "Division frequency and the number of sub-problems".

    >>> positive_negative_ratio(torch.tensor([1.0, 3.0, float("nan")]), torch.tensor([2.0, 2.0, 2.0]))
    1.0
    """
    counted = same.isfinite() & (other > 0)
    return float((same[counted].double() / other[counted].double()).mean())


def expected_distance(found: Float[Tensor, "n m"], k: int) -> float:
    """ED_k, the expected mean distance to the k nearest: (1/n) Σ_i (1/k) Σ_{j≤k} |x_i - x_(j)|.

    ``found`` are the distances to the neighbours, the nearest first; NaN where there are fewer than k. The
    paper's section 4.3, "Division frequency and the number of sub-problems", and supplement "UMAP visualization".

    >>> expected_distance(torch.tensor([[1.0, 3.0], [2.0, 4.0]]), k=1)
    1.5
    """
    return math.nan if found.shape[1] < k else float(found[:, :k].double().mean())


def expected_distance_on_sphere(n: int, d: int, k: int) -> float:
    """ED_k of ``n`` independent points, uniform on the unit sphere of R^d.

    The squared distance of two points is 4 B, B ~ Beta((d-1)/2, (d-1)/2), and the j-th smallest of n - 1 uniform
    numbers has the distribution Beta(j, n-j): E|x_i - x_(j)| = ∫_0^1 2 √F_B⁻¹(F_j⁻¹(p)) dp. NaN if n ≤ k or d < 2.
    The paper's supplement, "UMAP visualization", has 1.275 and 1.290.

    >>> [round(expected_distance_on_sphere(60_502, 512, k), 3) for k in (1, 10)]
    [1.275, 1.29]
    """
    from scipy.special import betaincinv

    if k < 1 or n <= k or d < 2:
        return math.nan
    node, weight = np.polynomial.legendre.leggauss(NODES)
    j = np.arange(1, k + 1)[:, None]
    uniform = betaincinv(j, n - j, (node + 1) / 2)
    distance = 2 * np.sqrt(betaincinv((d - 1) / 2, (d - 1) / 2, uniform))
    return float((distance * weight / 2).sum(1).mean())


def hubness(ranking: Int64[Tensor, "q k"], found: int, of: int | None = None) -> float:
    """Skewness E[(N - EN)³] / Var(N)^{3/2} of N, how often each of the ``found`` images is among the k nearest.

    0 if all are found equally often: far above it a few hubs are near to everything. NaN without neighbours. If
    the q queries are a sample ``of`` more, N is counted for all of those: the moments are estimated without bias.
    The number behind "high-density hubs" in the paper's section 4.3 and supplement "UMAP visualization".

    >>> round(hubness(torch.tensor([[1], [0], [0], [0]]), found=4), 3)
    0.816
    """
    if ranking.numel() == 0 or found == 0:
        return math.nan
    mean, variance, third = _central_moments(ranking, found, len(ranking) if of is None else of)
    return third / variance**1.5 if variance > 1e-12 * mean else 0.0


def _central_moments(ranking: Int64[Tensor, "q k"], found: int, of: int) -> tuple[float, float, float]:
    """Mean, variance and third central moment of N, how often an image is found by ``of`` queries.

    Of those, q are drawn, and S of the N are among them: E[S(S-1)..(S-r+1)] / q(q-1)..(q-r+1) is
    N(N-1)..(N-r+1) / of(of-1)..(of-r+1), the expectation being over all draws.
    """
    times, q = ranking[ranking >= 0].bincount(minlength=found).double(), len(ranking)
    falling, product, scale = [], torch.ones_like(times), 1.0
    for r in range(3):
        product = product * (times - r)
        scale *= (of - r) / (q - r) if q > r else 0.0
        falling.append(float(product.mean()) * scale)
    first, second, third = falling[0], falling[1] + falling[0], falling[2] + 3 * falling[1] + falling[0]
    return first, second - first**2, third - 3 * first * second + 2 * first**3


def _nearest_within(x: Float32[Tensor, "c s d"]) -> Int64[Tensor, "c s"]:
    """For each point, in each of c sets of one size, the nearest other of its set; of equals the first."""
    half, best = x.square().sum(2) / 2, []
    own = torch.arange(x.shape[1], device=x.device)
    with exact_products(x.device.type):
        for rows in own.split(_rows(8 * len(x) * x.shape[1])):
            scores = x[:, rows] @ x.mT - half[:, None]
            scores[:, rows - rows[0], rows] = -torch.inf
            best.append(scores.argmax(2))
    return torch.cat(best, 1)


def _rows(size: int) -> int:
    """How many rows of ``size`` bytes make a block."""
    return max(1, BLOCK // size)
