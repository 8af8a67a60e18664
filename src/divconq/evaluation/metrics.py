"""The metrics: functions of a block of rankings, or of all embeddings. ``scores.METRICS`` lists them."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import normalize

from divconq.accel.coordinates import of_unit_length, power_of_two, scaled
from divconq.division.lloyd import kmeans
from divconq.evaluation.checks import check_embeddings


@dataclass(frozen=True)
class Ranking:
    """The ranked neighbours of a block of queries.

    ``hits[i, j]`` is whether the neighbour at rank j + 1 has the class of query i. ``positives[i]`` is R, the
    number of images that query i can find; it is at least 1. There are at least R columns and at least max(ks).

    >>> ranking = Ranking(torch.tensor([[True, False, True, False, True]]), torch.tensor([3]))
    >>> map_at_r(ranking), r_precision(ranking), marp(ranking), recall_at_k(ranking, 1)
    (tensor([0.5556], dtype=torch.float64), tensor([0.6667], dtype=torch.float64), \
tensor([0.8333], dtype=torch.float64), tensor([1.], dtype=torch.float64))
    """

    hits: Bool[Tensor, "b k"]
    positives: Int64[Tensor, " b"]

    @cached_property
    def hits_within_r(self) -> Bool[Tensor, "b k"]:
        """Return the hits h_i at the ranks i <= R."""
        return self.hits & (self._rank <= self.positives[:, None])

    @cached_property
    def precision_sum(self) -> Float64[Tensor, " b"]:
        """Return Σ h_i p_i over the ranks i <= R, where p_i = Σ_{j<=i} h_j / i is the precision at rank i."""
        hits = self.hits_within_r
        return (hits.cumsum(1).double() / self._rank).masked_fill_(~hits, 0).sum(1)

    @cached_property
    def _rank(self) -> Int64[Tensor, " k"]:
        return torch.arange(1, self.hits.shape[1] + 1, device=self.hits.device)


def recall_at_k(ranking: Ranking, k: int) -> Float64[Tensor, " b"]:
    """Return 1 for each query with a hit among its ``k`` nearest neighbours, else 0."""
    return ranking.hits[:, :k].any(1).double()


def map_at_r(ranking: Ranking) -> Float64[Tensor, " b"]:
    """Return Σ h_i p_i / R of each query. Musgrave et al., A Metric Learning Reality Check, 2020."""
    return ranking.precision_sum / ranking.positives


def r_precision(ranking: Ranking) -> Float64[Tensor, " b"]:
    """Return Σ h_i / R of each query."""
    return ranking.hits_within_r.sum(1).double() / ranking.positives


def marp(ranking: Ranking) -> Float64[Tensor, " b"]:
    """Return Σ h_i p_i / Σ h_i of each query, and 0 without a hit."""
    return ranking.precision_sum / ranking.hits_within_r.sum(1).clamp(min=1)


def nmi(
    x: Float[Tensor, "n d"],
    labels: Int64[Tensor, " n"],
    seed: int = 0,
    *,
    runs: int = 1,
    iterations: int = 25,
) -> float:
    """Return the normalised mutual information 2 I(C; Y) / (H(C) + H(Y)) of k-means clusters C and classes Y.

    There are as many clusters as classes. The result is the mean over ``runs`` k-means with the seeds ``seed``,
    ``seed + 1``, ...

    >>> nmi(torch.tensor([[0.0], [0.1], [7.0], [7.1]]), torch.tensor([4, 4, 9, 9]))
    1.0
    """
    check_embeddings("x", x, labels)
    if runs < 1:
        raise ValueError(f"runs must be at least 1, got {runs}; the default is 1")
    classes, found = len(labels.unique()), []
    for s in range(seed, seed + runs):
        clusters = kmeans(x, classes, seed=s, iterations=iterations)
        found.append(normalised_information(clusters, labels.to(clusters.device)))
    return sum(found) / runs


def normalised_information(a: Int64[Tensor, " n"], b: Int64[Tensor, " n"]) -> float:
    """Return 2 I(A; B) / (H(A) + H(B)) of two groupings of the same items; 1 if each has a single group.

    Uses I = H(A) + H(B) - H(A, B). scikit-learn has the same function, but its import takes longer than a whole
    evaluation.

    >>> normalised_information(torch.tensor([0, 0, 1, 1]), torch.tensor([7, 7, 3, 3]))
    1.0
    """
    a, b = (groups.unique(return_inverse=True)[1] for groups in (a, b))
    h_a, h_b, h_ab = (_entropy(groups) for groups in (a, b, a * (b.max() + 1) + b))
    return max(0.0, 2 * (h_a + h_b - h_ab) / (h_a + h_b)) if h_a + h_b > 0 else 1.0


def _entropy(groups: Int64[Tensor, " n"]) -> float:
    share = groups.unique(return_counts=True)[1].double() / len(groups)
    return float(-(share * share.log()).sum())


def spread(x: Float[Tensor, "n d"]) -> float:
    """Return 1 - |mean of the unit vectors|^2: 1 if they point in all directions, 0 if all are equal.

    Vectors of another length are normalised first.

    >>> spread(torch.ones(5, 3) / 3**0.5) < 1e-6, spread(torch.tensor([[9.0, 0.0], [0.0, 4.0]]))
    (True, 0.5)
    """
    if not of_unit_length(x):
        x = normalize(scaled(x, power_of_two(x)), eps=torch.finfo(torch.float64).tiny)
    wide = x.detach().to(torch.promote_types(x.dtype, torch.float32))
    return 1.0 - float(wide.mean(0).square().sum())
