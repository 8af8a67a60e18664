"""Measures of the clusters of a division: NMI with the classes, change over time, sizes, and split classes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from scipy.stats import entropy
from torch import Tensor

from divconq.division.matching import match
from divconq.division.partition import check_clusters
from divconq.evaluation.metrics import normalised_information


def partition_nmi(a: Int64[Tensor, " n"], b: Int64[Tensor, " n"]) -> float:
    """Return the normalised mutual information 2 I(A; B) / (H(A) + H(B)) of two groupings of the same images.

    It is 1 if both have one group only, and NaN without images. See the paper's supplement "Datasets", and
    section 4.3, "Division strategy".

    >>> partition_nmi(torch.tensor([0, 0, 1, 1]), torch.tensor([7, 7, 3, 3]))
    1.0
    """
    return normalised_information(a, b) if len(a) > 0 else math.nan


@dataclass(frozen=True)
class Change:
    """A division compared with the previous one: their NMI, and the share of images that kept their cluster."""

    nmi: float
    kept: float


def partition_change(new: Int64[Tensor, " n"], old: Int64[Tensor, " n"], new_k: int, old_k: int) -> Change:
    """Return the comparison of a partition with the previous one.

    The matching of equation 3 pairs new clusters with old ones. After a bisection, the children 2i and 2i+1 count as
    cluster i. Both numbers are NaN without images. See the paper's section 4.3, "Division strategy" (60-75% kept),
    and supplement "Cluster consistency during training".

    >>> partition_change(torch.tensor([3, 2, 1, 0]), torch.tensor([0, 0, 1, 1]), new_k=4, old_k=2).kept
    1.0
    """
    check_clusters("new", new, new_k)
    check_clusters("old", old, old_k)
    if len(new) == 0:
        return Change(math.nan, math.nan)
    grown, left = divmod(new_k, old_k)
    ancestors, k = (new // grown, old_k) if left == 0 else (new, max(new_k, old_k))
    kept = match(ancestors, old, k) == old
    return Change(partition_nmi(new, old), float(kept.double().mean()))


@dataclass(frozen=True)
class Sizes:
    """The sizes of k clusters in t divisions, with the mean and standard deviation of each cluster."""

    sizes: Int64[Tensor, "t k"]
    mean: Float64[Tensor, " k"]
    deviation: Float64[Tensor, " k"]


def cluster_sizes(divisions: Sequence[Int64[Tensor, " n"]], k: int) -> Sizes:
    """Return the sizes of the ``k`` clusters in every division, with mean and standard deviation over divisions.

    The deviation divides by the number of divisions. Both are NaN without divisions. See the paper's section 4.3,
    "Division strategy", figure "Distribution of the sizes of clusters".

    >>> cluster_sizes([torch.tensor([0, 0, 1]), torch.tensor([0, 0, 0])], k=2).mean.tolist()
    [2.5, 0.5]
    """
    for clusters in divisions:
        check_clusters("divisions", clusters, k)
    counts = [clusters.bincount(minlength=k).cpu() for clusters in divisions]
    if not counts:
        nan = torch.full((k,), math.nan, dtype=torch.float64)
        return Sizes(torch.empty(0, k, dtype=torch.int64), nan, nan)
    sizes = torch.stack(counts)
    return Sizes(sizes, sizes.double().mean(0), sizes.double().std(0, correction=0))


def class_shares(
    labels: Int64[Tensor, " n"], clusters: Int64[Tensor, " n"], k: int
) -> Float64[Tensor, "classes k"]:
    """Return p(cluster | class) for each class 0 .. C-1; NaN for a class without images.

    >>> class_shares(torch.tensor([0, 0, 2]), torch.tensor([1, 0, 1]), k=2).tolist()
    [[0.5, 0.5], [nan, nan], [0.0, 1.0]]
    """
    check_clusters("clusters", clusters, k)
    classes = int(labels.max()) + 1 if len(labels) else 0
    counts = (labels * k + clusters).bincount(minlength=classes * k).view(classes, k).double()
    return counts / counts.sum(1, keepdim=True)


@dataclass(frozen=True)
class SplitClass:
    """A class, its number of images, its shares in the clusters, and the entropy of these shares in bits."""

    label: int
    images: int
    entropy: float
    shares: tuple[float, ...]


def most_split(
    labels: Int64[Tensor, " n"], clusters: Int64[Tensor, " n"], k: int, top: int = 12
) -> list[SplitClass]:
    """Return the classes that clusters split most, by the entropy H = -Σ_k p_k log2 p_k of their shares.

    Ties go to the class with more images, then to the lower label. Classes within one cluster are left out. See the
    paper's section 3.1.1, figure "images sharing the same GT class label but splitted across several clusters".

    >>> most_split(torch.tensor([4, 4, 1, 1]), torch.tensor([0, 0, 0, 1]), k=2)
    [SplitClass(label=1, images=2, entropy=1.0, shares=(0.5, 0.5))]
    """
    shares = class_shares(labels, clusters, k).cpu()
    images = labels.bincount(minlength=len(shares)).tolist()
    bits = entropy(shares.numpy(), base=2, axis=1).tolist() if len(shares) else []
    split = [label for label in range(len(shares)) if bits[label] > 0]
    split.sort(key=lambda label: (-round(bits[label], 12), -images[label], label))
    return [
        SplitClass(label, images[label], bits[label], tuple(shares[label].tolist())) for label in split[:top]
    ]
