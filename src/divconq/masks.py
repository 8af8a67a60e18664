"""The subspaces: one mask over the embedding's dimensions for every cluster (paper, section 3.1.2)."""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from divconq.checks import check_power_of_two

MaskKind = Literal["learned", "fixed", "none"]
Conquer = Literal["sum", "plain"]


class Masks(nn.Module):
    """K masks s_1 .. s_K in R^d, of which ``k`` are in use; a subspace is f_i(x) = f(x) * relu(s_i).

    ``learned`` masks start as ones and are trained; ``fixed`` masks are orthogonal blocks of dimensions;
    ``none`` leaves the embedding whole. All ``k_max`` rows exist from the start, so shapes never change.

    >>> masks = Masks(dim=4, k_max=2, kind="fixed")
    >>> masks.split_()
    >>> masks.active().tolist()
    [[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]
    >>> masks.conquer().tolist()
    [1.0, 1.0, 1.0, 1.0]
    """

    weight: Tensor
    count: Tensor

    def __init__(self, dim: int, k_max: int, kind: MaskKind = "learned", conquer: Conquer = "sum") -> None:
        super().__init__()
        check_power_of_two("k_max", k_max)
        if kind not in get_args(MaskKind):
            raise ValueError(f"masks must be one of {', '.join(get_args(MaskKind))}, got {kind!r}")
        if kind == "fixed" and dim < k_max:
            raise ValueError(
                f"fixed masks need at least one dimension each: dim must be at least k_max = {k_max}, got {dim}; "
                "raise dim, lower k_max or use learned masks"
            )
        self.kind, self.final = kind, conquer
        ones = torch.ones(k_max, dim)
        if kind == "learned":
            self.weight = nn.Parameter(ones)
        else:
            self.register_buffer("weight", ones)
        self.register_buffer("count", torch.ones((), dtype=torch.int64))

    @property
    def k(self) -> int:
        """How many masks are in use."""
        return int(self.count)

    def active(self) -> Float[Tensor, "k d"]:
        """The masks in use, as they are applied: relu(s_1) .. relu(s_k)."""
        return self.weight[: self.k].relu()

    def select(self, f: Float[Tensor, "n d"], cluster: int | Int64[Tensor, ""]) -> Float[Tensor, "n d"]:
        """The embedding in the subspace of one cluster: f(x) * relu(s_cluster)."""
        if isinstance(cluster, int):
            return f * self.weight[cluster].relu()  # no copy to the device, which would wait for it
        return f * self.weight.index_select(0, cluster.reshape(1)).relu()

    def conquer(self) -> Float[Tensor, " d"]:
        """The mask of the final space, the sum over k of relu(s_k), or ones when told to stay ``plain``."""
        if self.final == "plain":
            return torch.ones_like(self.weight[0])
        return (self.weight.relu() * self._in_use()[:, None]).sum(0)

    def overlap(self) -> Float[Tensor, ""]:
        """L_s, the mean cosine similarity of relu(s_i) and relu(s_j) over the ordered pairs i != j in use.

        >>> masks = Masks(dim=4, k_max=2); masks.split_(); round(masks.overlap().item(), 6)
        1.0
        """
        if self.kind != "learned":
            return self.weight.new_zeros(())
        unit = F.normalize(self.weight.relu(), dim=1) * self._in_use()[:, None]
        cosine = unit @ unit.T
        pairs = self.count * (self.count - 1)
        return (cosine.sum() - cosine.diagonal().sum()) / pairs.clamp(min=1)

    @torch.no_grad()
    def split_(self, noise: float = 0.0, *, seed: int = 0) -> None:
        """Double the masks in use: the children of mask i are 2i and 2i+1.

        Both children of a learned mask start as copies of it; a fixed mask's block is halved. Equal masks are where
        the gradient of L_s is 0: ``noise`` takes learned ones apart, to (1 + e) s_i and (1 - e) s_i, where e is
        ``noise`` or minus that, drawn by ``seed`` for each dimension, and anew for each split.

        >>> masks = Masks(dim=4, k_max=2); masks.split_(noise=0.5)
        >>> sorted(masks.active()[0].unique().tolist()), masks.conquer().tolist()
        ([0.5, 1.5], [2.0, 2.0, 2.0, 2.0])
        """
        k = self.k
        if 2 * k > len(self.weight):
            raise ValueError(f"all {len(self.weight)} masks are in use; build Masks with a larger k_max")
        children = self.weight[:k].repeat_interleave(2, dim=0)
        if self.kind == "fixed":
            place = children.cumsum(1)
            first = place <= (children.sum(1, keepdim=True) / 2).floor()
            left = torch.arange(2 * k, device=children.device)[:, None] % 2 == 0
            children = children * torch.where(left, first, ~first)
        elif self.kind == "learned" and noise:
            draw = torch.Generator().manual_seed(seed + k)
            signs = torch.randint(2, (k, children.shape[1]), generator=draw) * 2.0 - 1
            children = children * (1 + noise * torch.stack([signs, -signs], 1).flatten(0, 1).to(children))
        self.weight[: 2 * k] = children
        self.count.fill_(2 * k)

    def _in_use(self) -> Tensor:
        return (torch.arange(len(self.weight), device=self.weight.device) < self.count).to(self.weight.dtype)
