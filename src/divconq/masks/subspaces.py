"""The subspaces: one mask over the embedding's dimensions for every cluster (paper, section 3.1.2)."""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from divconq.checks import check_choice, check_disjoint_masks, check_power_of_two
from divconq.masks.kinds import MASKS

Conquer = Literal["sum", "plain"]


class Masks(nn.Module):
    """K masks s_1 .. s_K in R^d, of which ``k`` are in use; subspace i is f_i(x) = f(x) * relu(s_i).

    ``kind`` is one of ``MASKS``: ``learned`` masks are trained, ``fixed`` masks are disjoint blocks of dimensions,
    ``none`` keeps the embedding whole. All ``k_max`` rows exist from the start, so shapes never change.

    >>> masks = Masks(dim=4, k_max=2, kind="fixed")
    >>> masks.split_()
    >>> masks.active().tolist()
    [[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]
    >>> masks.conquer().tolist()
    [1.0, 1.0, 1.0, 1.0]
    """

    weight: Tensor
    count: Tensor

    def __init__(self, dim: int, k_max: int, kind: str = "learned", conquer: Conquer = "sum") -> None:
        super().__init__()
        check_power_of_two("k_max", k_max)
        check_choice("masks", kind, MASKS)
        check_choice("conquer", conquer, ("sum", "plain"))
        if MASKS[kind].disjoint:
            check_disjoint_masks(kind, dim, k_max)
        self.kind, self.final = kind, conquer
        ones = torch.ones(k_max, dim)
        if MASKS[kind].trained:
            self.weight = nn.Parameter(ones)
        else:
            self.register_buffer("weight", ones)
        self.register_buffer("count", torch.ones((), dtype=torch.int64))

    @property
    def k(self) -> int:
        """Return the number of masks in use."""
        return int(self.count)

    def active(self) -> Float[Tensor, "k d"]:
        """Return the masks in use as they are applied: relu(s_1) .. relu(s_k)."""
        return self.weight[: self.k].relu()

    def select(self, f: Float[Tensor, "n d"], cluster: int | Int64[Tensor, ""]) -> Float[Tensor, "n d"]:
        """Return the embeddings in the subspace of one cluster: f(x) * relu(s_cluster)."""
        if isinstance(cluster, int):
            return f * self.weight[cluster].relu()  # with an int, nothing is copied to the device
        return f * self.weight.index_select(0, cluster.reshape(1)).relu()

    def conquer(self) -> Float[Tensor, " d"]:
        """Return the mask of the final space: the sum over k of relu(s_k), or ones if ``conquer`` is ``plain``."""
        if self.final == "plain":
            return torch.ones_like(self.weight[0])
        return (self.weight.relu() * self._in_use()[:, None]).sum(0)

    def overlap(self) -> Float[Tensor, ""]:
        """Return L_s: the mean cosine similarity of relu(s_i) and relu(s_j) over the ordered pairs i != j in use.

        >>> masks = Masks(dim=4, k_max=2); masks.split_(); round(masks.overlap().item(), 6)
        1.0
        """
        if not MASKS[self.kind].trained:
            return self.weight.new_zeros(())
        unit = F.normalize(self.weight.relu(), dim=1) * self._in_use()[:, None]
        cosine = unit @ unit.T
        pairs = self.count * (self.count - 1)
        return (cosine.sum() - cosine.diagonal().sum()) / pairs.clamp(min=1)

    @torch.no_grad()
    def split_(self, noise: float = 0.0, *, seed: int = 0) -> None:
        """Double the number of masks in use: the children of mask i are 2i and 2i + 1.

        ``noise`` separates the two copies of a learned mask, see ``divconq.masks.learned``.

        >>> masks = Masks(dim=4, k_max=2); masks.split_(noise=0.5)
        >>> sorted(masks.active()[0].unique().tolist()), masks.conquer().tolist()
        ([0.5, 1.5], [2.0, 2.0, 2.0, 2.0])
        """
        k = self.k
        if 2 * k > len(self.weight):
            raise ValueError(f"all {len(self.weight)} masks are in use; build Masks with a larger k_max")
        self.weight[: 2 * k] = MASKS[self.kind].load()(self.weight[:k], noise=noise, seed=seed)
        self.count.fill_(2 * k)

    def _in_use(self) -> Tensor:
        return (torch.arange(len(self.weight), device=self.weight.device) < self.count).to(self.weight.dtype)
