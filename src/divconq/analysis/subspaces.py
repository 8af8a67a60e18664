"""The subspaces: how their masks overlap, what each of them retrieves alone, and how they correct each other.

Everywhere f is the embedding without masks, of any length: in a subspace it is normalised.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

from divconq.analysis.clusters import FactorTable, levels, partition_nmi
from divconq.analysis.nearest import neighbours
from divconq.division.lloyd import kmeans
from divconq.evaluation.checks import check_gallery
from divconq.evaluation.neighbours import BUDGET
from divconq.evaluation.retrieval import occurrences

ACTIVE = 0.1  # of a mask's largest weight


def mask_cosine(masks: Float[Tensor, "k d"]) -> Float64[Tensor, "k k"]:
    """Cosine similarity of relu(s_i) and relu(s_j); 0 for a mask of zeros, as in L_s.

    Equation 5 of the paper's section 3.1.2, and supplement "Learned masks visualization".

    >>> mask_cosine(torch.tensor([[1.0, 0.0], [2.0, 0.0], [-1.0, 3.0]])).tolist()
    [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    unit = F.normalize(masks.double().relu(), dim=1)
    return unit @ unit.T


def shared_dimensions(masks: Float[Tensor, "k d"], threshold: float = ACTIVE) -> Int64[Tensor, "k k"]:
    """How many dimensions are active in both of two masks; the diagonal has those active in each.

    Dimension j is active in mask i if relu(s_ij) > threshold · max_j relu(s_ij). The paper's supplement
    "Learned masks visualization".

    >>> shared_dimensions(torch.tensor([[1.0, 0.5, 0.0], [0.01, 1.0, 1.0]])).tolist()
    [[2, 1], [1, 2]]
    """
    weights = masks.double().relu()
    active = (weights > threshold * weights.amax(1, keepdim=True)).double()
    return (active @ active.T).round().long()


def mask_mass(masks: Float[Tensor, "k d"]) -> Float64[Tensor, " k"]:
    """The L1 mass Σ_j relu(s_ij) of every mask. The paper's supplement "Learned masks visualization".

    >>> mask_mass(torch.tensor([[1.0, 0.5, -3.0], [0.0, 0.0, 0.0]])).tolist()
    [1.5, 0.0]
    """
    return masks.double().relu().sum(1)


def subspace(f: Float[Tensor, "n d"], mask: Float[Tensor, " d"]) -> Float[Tensor, "n m"]:
    """The embedding in one subspace, normalize(f(x) * relu(s)), without the dimensions whose weight is 0.

    >>> subspace(torch.tensor([[3.0, 4.0, 9.0]]), torch.tensor([1.0, 1.0, -1.0])).tolist()
    [[0.6000000238418579, 0.800000011920929]]
    """
    used = mask > 0
    if not used.any():
        return torch.zeros_like(f[:, :1])
    return F.normalize(f[:, used] * mask[used])


@dataclass(frozen=True)
class Hits:
    """Whether the nearest neighbour is of the query's class: in each of K subspaces, and in the final space."""

    queries: Int64[Tensor, " q"]
    each: Bool[Tensor, "k q"]
    final: Bool[Tensor, " q"]

    def recalls(self) -> list[float]:
        """Recall@1 of each subspace alone; NaN without queries."""
        return [float(value) for value in self.each.double().mean(1)]

    def final_recall(self) -> float:
        """Recall@1 of the final space; NaN without queries."""
        return float(self.final.double().mean())


def subspace_hits(
    f: Float[Tensor, "n d"],
    labels: Int64[Tensor, " n"],
    masks: Float[Tensor, "k d"],
    *,
    gallery: Float[Tensor, "g d"] | None = None,
    gallery_labels: Int64[Tensor, " g"] | None = None,
    queries: Int64[Tensor, " q"] | None = None,
    final: Float[Tensor, " d"] | None = None,
    budget: int = BUDGET,
) -> Hits:
    """What each subspace alone, and the ``final`` mask (the sum of all if not given), finds first.

    Of all images or some ``queries``, those are asked that have an image of their class to find. The paper's
    sections 3.3 and 4.3, "Subspace learning": figure "Comparison of the retrieval results on CARS".

    >>> quadrants = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    >>> hits = subspace_hits(quadrants.repeat(2, 1), torch.arange(4).repeat(2), masks=torch.eye(2))
    >>> hits.recalls(), hits.final_recall()
    ([0.25, 0.25], 1.0)
    """
    check_gallery(gallery, gallery_labels)
    found = labels if gallery_labels is None else gallery_labels
    asked = torch.arange(len(f), device=f.device) if queries is None else queries
    asked = asked[positives(labels, gallery_labels)[asked] > 0]

    def hits(mask: Tensor) -> Tensor:
        searched = None if gallery is None else subspace(gallery, mask)
        first = neighbours(subspace(f, mask), 1, gallery=searched, queries=asked, budget=budget)
        return (found[first] == labels[asked, None]).any(1)

    each = [hits(mask) for mask in masks]
    stacked = torch.stack(each) if each else torch.empty(0, len(asked), dtype=torch.bool, device=f.device)
    return Hits(asked, stacked, hits(masks.relu().sum(0) if final is None else final))


@dataclass(frozen=True)
class Corrections:
    """Queries that the sum gets right while most subspaces are wrong, and the reverse."""

    helped: Int64[Tensor, " h"]
    hurt: Int64[Tensor, " u"]


def corrections(hits: Hits) -> Corrections:
    """Where the subspaces correct each other: right in the final space, wrong in more than half of them.

    And where they mislead: wrong in the final space, right in more than half. The most extreme are first. The
    paper's section 4.3, "Subspace learning".

    >>> each = torch.tensor([[False, True], [False, True], [True, True]])
    >>> corrections(Hits(torch.tensor([5, 8]), each, torch.tensor([True, False])))
    Corrections(helped=tensor([5]), hurt=tensor([8]))
    """
    k, right = len(hits.each), hits.each.sum(0)
    wrong = k - right
    helped = (hits.final & (2 * wrong > k)).nonzero().flatten()
    hurt = (~hits.final & (2 * right > k)).nonzero().flatten()
    return Corrections(
        hits.queries[helped[wrong[helped].argsort(descending=True, stable=True)]],
        hits.queries[hurt[right[hurt].argsort(descending=True, stable=True)]],
    )


def factors_of_subspaces(
    f: Float[Tensor, "n d"],
    masks: Float[Tensor, "k d"],
    factors: Mapping[str, Shaped[Tensor, " n"]],
    seed: int = 0,
) -> FactorTable:
    """Which factor each subspace encodes: NMI of every factor with as many k-means clusters as it has levels.

    NaN for a factor with one level. The same as the NMI of the paper's section 4.1 with factors for classes.

    >>> f = torch.tensor([[1.0, 0.1], [1.0, -0.1], [-1.0, 0.1], [-1.0, -0.1]])
    >>> factors = {"left": torch.tensor([0, 0, 1, 1]), "up": torch.tensor([1, 0, 1, 0])}
    >>> factors_of_subspaces(f, torch.eye(2), factors).strongest()
    [('left', 1.0), ('up', 1.0)]
    """
    columns = {name: levels(values) for name, values in factors.items()}
    counts = {name: len(column.unique()) for name, column in columns.items()}
    rows = []
    for mask in masks:
        x = subspace(f, mask)
        groups = {count: kmeans(x, count, seed=seed) for count in set(counts.values()) if count > 1}
        rows.append(
            [
                partition_nmi(groups[counts[name]], column) if counts[name] > 1 else math.nan
                for name, column in columns.items()
            ]
        )
    return FactorTable(tuple(columns), torch.tensor(rows, dtype=torch.float64).view(len(masks), len(columns)))


def positives(
    labels: Int64[Tensor, " n"], gallery_labels: Int64[Tensor, " g"] | None = None
) -> Int64[Tensor, " n"]:
    """How many images of its class each image can find: in the gallery, without one among the others.

    >>> positives(torch.tensor([3, 3, 8])).tolist(), positives(torch.tensor([3, 8]), torch.tensor([8])).tolist()
    ([1, 1, 0], [0, 1])
    """
    if gallery_labels is None:
        return occurrences(labels, labels) - 1
    return occurrences(labels, gallery_labels)
