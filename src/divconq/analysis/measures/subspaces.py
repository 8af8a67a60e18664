"""The subspaces: overlap of their masks, retrieval in each of them, and queries where they correct each other.

``f`` is the embedding before the masks. Its length does not matter: it is normalised in every subspace.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from divconq.analysis.measures.nearest import neighbours, positives
from divconq.evaluation.checks import check_gallery
from divconq.evaluation.neighbours import BUDGET

ACTIVE = 0.1  # share of the largest weight of a mask


def mask_cosine(masks: Float[Tensor, "k d"]) -> Float64[Tensor, "k k"]:
    """Return the cosine similarity of relu(s_i) and relu(s_j); 0 for a mask of zeros, as in L_s.

    See equation 5 in the paper's section 3.1.2, and supplement "Learned masks visualization".

    >>> mask_cosine(torch.tensor([[1.0, 0.0], [2.0, 0.0], [-1.0, 3.0]])).tolist()
    [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    unit = F.normalize(masks.double().relu(), dim=1)
    return unit @ unit.T


def shared_dimensions(masks: Float[Tensor, "k d"], threshold: float = ACTIVE) -> Int64[Tensor, "k k"]:
    """Return how many dimensions are active in both masks of each pair; the diagonal counts those of one mask.

    Dimension j is active in mask i if relu(s_ij) > threshold · max_j relu(s_ij). See the paper's supplement
    "Learned masks visualization".

    >>> shared_dimensions(torch.tensor([[1.0, 0.5, 0.0], [0.01, 1.0, 1.0]])).tolist()
    [[2, 1], [1, 2]]
    """
    weights = masks.double().relu()
    active = (weights > threshold * weights.amax(1, keepdim=True)).double()
    return (active @ active.T).round().long()


def mask_mass(masks: Float[Tensor, "k d"]) -> Float64[Tensor, " k"]:
    """Return the L1 mass Σ_j relu(s_ij) of every mask. See the paper's supplement "Learned masks visualization".

    >>> mask_mass(torch.tensor([[1.0, 0.5, -3.0], [0.0, 0.0, 0.0]])).tolist()
    [1.5, 0.0]
    """
    return masks.double().relu().sum(1)


def subspace(f: Float[Tensor, "n d"], mask: Float[Tensor, " d"]) -> Float[Tensor, "n m"]:
    """Return the embedding in one subspace, normalize(f(x) * relu(s)), without the dimensions of weight 0.

    >>> subspace(torch.tensor([[3.0, 4.0, 9.0]]), torch.tensor([1.0, 1.0, -1.0])).tolist()
    [[0.6000000238418579, 0.800000011920929]]
    """
    used = mask > 0
    if not used.any():
        return torch.zeros_like(f[:, :1])
    return F.normalize(f[:, used] * mask[used])


@dataclass(frozen=True)
class Hits:
    """Whether the nearest neighbour has the class of the query: in each of K subspaces, and in the final space."""

    queries: Int64[Tensor, " q"]
    each: Bool[Tensor, "k q"]
    final: Bool[Tensor, " q"]

    def recalls(self) -> list[float]:
        """Return the Recall@1 of each subspace; NaN without queries."""
        return [float(value) for value in self.each.double().mean(1)]

    def final_recall(self) -> float:
        """Return the Recall@1 of the final space; NaN without queries."""
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
    """Return whether the nearest neighbours have the right class, in each subspace and in the final space.

    ``final`` is the mask of the final space; the default is the sum of all masks. ``queries`` selects the rows that
    search; rows without a positive are left out. See the paper's sections 3.3 and 4.3,
    "Subspace learning", figure "Comparison of the retrieval results on CARS".

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
    """Queries for which the sum is right and most subspaces are wrong (helped), and the reverse (hurt)."""

    helped: Int64[Tensor, " h"]
    hurt: Int64[Tensor, " u"]


def corrections(hits: Hits) -> Corrections:
    """Return the queries for which the final space and more than half of the subspaces disagree.

    The queries with the largest majority come first. See the paper's section 4.3, "Subspace learning".

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
