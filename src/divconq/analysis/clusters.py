"""The clusters of a division: how they agree with classes, with each other over time, and with known factors."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64, Shaped
from torch import Tensor

from divconq.division.matching import match
from divconq.division.partition import check_clusters
from divconq.evaluation.metrics import normalised_information

BINS = 8  # of equal size, for a factor that is not whole numbers


def partition_nmi(a: Int64[Tensor, " n"], b: Int64[Tensor, " n"]) -> float:
    """Normalised mutual information 2 I(A; B) / (H(A) + H(B)) of two ways to group the same images.

    1 if both put all into one group, NaN without images. The paper's supplement "Datasets"; over time in its
    section 4.3, "Division strategy".

    >>> partition_nmi(torch.tensor([0, 0, 1, 1]), torch.tensor([7, 7, 3, 3]))
    1.0
    """
    return normalised_information(a, b) if len(a) > 0 else math.nan


@dataclass(frozen=True)
class Change:
    """What a division did to the one before: their NMI, and the share of images that kept their cluster."""

    nmi: float
    kept: float


def partition_change(new: Int64[Tensor, " n"], old: Int64[Tensor, " n"], new_k: int, old_k: int) -> Change:
    """NMI of a partition with the one before, and the share of images in a cluster of the same name.

    Names are given by the matching of equation 3; if clusters were bisected meanwhile, children 2i and 2i+1 count
    as cluster i. NaN without images. The paper's section 4.3, "Division strategy" (60-75% kept), and supplement
    "Cluster consistency during training".

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
    """The sizes of k clusters in t divisions, and the mean and deviation of each cluster over the divisions."""

    sizes: Int64[Tensor, "t k"]
    mean: Float64[Tensor, " k"]
    deviation: Float64[Tensor, " k"]


def cluster_sizes(divisions: Sequence[Int64[Tensor, " n"]], k: int) -> Sizes:
    """Sizes of the clusters in every division into ``k``, with mean and standard deviation over the divisions.

    The deviation divides by the number of divisions; without any, mean and deviation are NaN. The paper's
    section 4.3, "Division strategy": figure "Distribution of the sizes of clusters".

    >>> cluster_sizes([torch.tensor([0, 0, 1]), torch.tensor([0, 0, 0])], k=2).mean.tolist()
    [2.5, 0.5]
    """
    for labels in divisions:
        check_clusters("divisions", labels, k)
    counts = [labels.bincount(minlength=k).cpu() for labels in divisions]
    sizes = torch.stack(counts) if counts else torch.empty(0, k, dtype=torch.int64)
    nothing = torch.full((k,), math.nan, dtype=torch.float64)
    if not counts:
        return Sizes(sizes, nothing, nothing)
    return Sizes(sizes, sizes.double().mean(0), sizes.double().std(0, correction=0))


def class_shares(
    labels: Int64[Tensor, " n"], clusters: Int64[Tensor, " n"], k: int
) -> Float64[Tensor, "classes k"]:
    """For each class 0 .. C-1 the shares p(cluster | class) of its images; NaN for a class without images.

    >>> class_shares(torch.tensor([0, 0, 2]), torch.tensor([1, 0, 1]), k=2).tolist()
    [[0.5, 0.5], [nan, nan], [0.0, 1.0]]
    """
    check_clusters("clusters", clusters, k)
    classes = int(labels.max()) + 1 if len(labels) else 0
    counts = (labels * k + clusters).bincount(minlength=classes * k).view(classes, k).double()
    return counts / counts.sum(1, keepdim=True)


@dataclass(frozen=True)
class SplitClass:
    """A class, how many images it has, their shares in the clusters, and the entropy of these in bits."""

    label: int
    images: int
    entropy: float
    shares: tuple[float, ...]


def most_split(
    labels: Int64[Tensor, " n"], clusters: Int64[Tensor, " n"], k: int, top: int = 12
) -> list[SplitClass]:
    """The classes that are split over clusters most, by the entropy H = -Σ_k p_k log2 p_k of their shares.

    Of equals the one with more images is first, then the lower label; classes within one cluster are left out.
    The paper's section 3.1.1, "Dividing the data and reducing the variance": figure "images sharing the same GT
    class label but splitted across several clusters".

    >>> most_split(torch.tensor([4, 4, 1, 1]), torch.tensor([0, 0, 0, 1]), k=2)
    [SplitClass(label=1, images=2, entropy=1.0, shares=(0.5, 0.5))]
    """
    shares = class_shares(labels, clusters, k).cpu()
    images = labels.bincount(minlength=len(shares)).tolist()
    entropy = (torch.special.entr(shares).sum(1) / math.log(2)).tolist()
    split = [label for label in range(len(shares)) if entropy[label] > 0]
    split.sort(key=lambda label: (-round(entropy[label], 12), -images[label], label))
    return [
        SplitClass(label, images[label], entropy[label], tuple(shares[label].tolist()))
        for label in split[:top]
    ]


@dataclass(frozen=True)
class FactorTable:
    """How much every cluster or subspace (a row) says of every factor (a column), from 0 to 1."""

    names: tuple[str, ...]
    values: Float64[Tensor, "k f"]

    def strongest(self) -> list[tuple[str, float] | None]:
        """The factor of which each row says most, and how much; None for a row that says nothing of any.

        >>> FactorTable(("pose", "colour"), torch.tensor([[0.1, 0.6], [0.0, 0.0]]).double()).strongest()[1] is None
        True
        """
        rows = [dict(zip(self.names, row, strict=True)) for row in self.values.nan_to_num(0.0).tolist()]
        best = [max(row.items(), key=lambda item: item[1], default=("", 0.0)) for row in rows]
        return [item if item[1] > 0 else None for item in best]


def factors_of_clusters(
    clusters: Int64[Tensor, " n"], factors: Mapping[str, Shaped[Tensor, " n"]], k: int
) -> FactorTable:
    """Which factor each cluster encodes: NMI of "is in cluster c" with every factor (see ``levels``).

    NaN for a cluster that is empty or holds everything, and for a factor with one level.

    >>> factors = {"pose": torch.tensor([0, 1, 0, 1]), "colour": torch.tensor([5, 5, 7, 7])}
    >>> factors_of_clusters(torch.tensor([0, 0, 1, 1]), factors, k=2).strongest()
    [('colour', 1.0), ('colour', 1.0)]
    """
    check_clusters("clusters", clusters, k)
    columns = {name: levels(values) for name, values in factors.items()}
    rows = [
        [_informative_nmi((clusters == c).long(), column) for column in columns.values()] for c in range(k)
    ]
    return FactorTable(tuple(columns), torch.tensor(rows, dtype=torch.float64).view(k, len(columns)))


def levels(values: Shaped[Tensor, " n"], bins: int = BINS) -> Int64[Tensor, " n"]:
    """The levels of a factor, numbered from 0: whole numbers as they are, others in bins of equal size.

    What is not finite is a level of its own.

    >>> levels(torch.tensor([7, 3, 7])).tolist(), levels(torch.tensor([0.1, 9.0, 0.2, 3.0]), bins=2).tolist()
    ([1, 0, 1], [0, 1, 0, 1])
    """
    if not values.is_floating_point():
        return _number(values)
    known = values.isfinite()
    order = values[known].double().sort().values
    if len(order) == 0:
        return torch.zeros_like(values, dtype=torch.int64)
    inner = torch.arange(1, bins, device=values.device) * len(order) // bins
    place = torch.bucketize(values.double().masked_fill(~known, 0.0), order[inner].unique(), right=True)
    return _number(place.masked_fill(~known, bins))


def _informative_nmi(a: Int64[Tensor, " n"], b: Int64[Tensor, " n"]) -> float:
    """NMI, or NaN if one of the two is constant."""
    return partition_nmi(a, b) if min(len(a.unique()), len(b.unique())) > 1 else math.nan


def _number(values: Shaped[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """Number the different values from 0."""
    numbers: Tensor = values.unique(return_inverse=True)[1]
    return numbers
