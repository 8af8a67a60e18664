"""The subspaces: one mask over the embedding's dimensions for every cluster (paper, section 3.1.2)."""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from divconq.checks import check_choice, check_disjoint_masks, check_power_of_two
from divconq.masks.activations import MASK_ACTIVATIONS
from divconq.masks.kinds import MASKS
from divconq.masks.rotation import rotated

Conquer = Literal["sum", "plain"]

DEAD = 0.01  # an entry is dead if it is at most this share of the largest entry of its mask


class Masks(nn.Module):
    """K masks in R^d, of which ``k`` are in use; subspace i is f_i(x) = f(x) * m_i.

    ``kind`` is one of ``MASKS``: ``learned`` masks are trained, ``fixed`` masks are disjoint blocks of dimensions,
    ``rotating`` masks are blocks that are given to the clusters anew in every epoch, ``none`` keeps the embedding
    whole. All ``k_max`` rows exist from the start, so shapes never change.

    ``activation`` is one of ``MASK_ACTIVATIONS``. It gives a learned mask m_i from its parameter s_i: ``relu(s_i)`` as
    in the paper; s_i itself, ``projected`` to 0 or above after every step (``project_``); ``softplus(s_i)``; or relu
    with the gradient of s_i (``straight_through``). While K = 1, the mask is ones, whatever its parameter.

    >>> masks = Masks(dim=4, k_max=2, kind="fixed")
    >>> masks.split_()
    >>> masks.active().tolist()
    [[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]
    >>> masks.conquer().tolist()
    [1.0, 1.0, 1.0, 1.0]
    """

    weight: Tensor
    count: Tensor

    def __init__(
        self,
        dim: int,
        k_max: int,
        kind: str = "learned",
        conquer: Conquer = "sum",
        activation: str = "relu",
    ) -> None:
        super().__init__()
        check_power_of_two("k_max", k_max)
        check_choice("masks", kind, MASKS)
        check_choice("conquer", conquer, ("sum", "plain"))
        check_choice("mask_activation", activation, MASK_ACTIVATIONS)
        if MASKS[kind].disjoint:
            check_disjoint_masks(kind, dim, k_max)
        self.kind, self.final = kind, conquer
        self.trained = MASKS[kind].trained
        self.activation = activation if self.trained else "relu"
        self._activate, self._inverse = MASK_ACTIVATIONS[self.activation].load()
        ones = torch.ones(k_max, dim)
        if self.trained:
            self.weight = nn.Parameter(self._inverse(ones))
        else:
            self.register_buffer("weight", ones)
        self.register_buffer("count", torch.ones((), dtype=torch.int64))

    @property
    def projects(self) -> bool:
        """Return whether ``project_`` must follow every step of the optimiser."""
        return MASK_ACTIVATIONS[self.activation].projects

    @property
    def k(self) -> int:
        """Return the number of masks in use."""
        return int(self.count)

    def active(self) -> Float[Tensor, "k d"]:
        """Return the masks in use as they are applied: m_1 .. m_k."""
        return self._masks(self.weight[: self.k])

    def select(self, f: Float[Tensor, "n d"], cluster: int | Int64[Tensor, ""]) -> Float[Tensor, "n d"]:
        """Return the embeddings in the subspace of one cluster: f(x) * m_cluster."""
        if isinstance(cluster, int):
            return f * self._masks(self.weight[cluster, None])  # with an int, nothing is copied to the device
        return f * self._masks(self.weight.index_select(0, cluster.reshape(1)))

    def conquer(self) -> Float[Tensor, " d"]:
        """Return the mask of the final space: the sum over k of m_k, or ones if ``conquer`` is ``plain``."""
        if self.final == "plain":
            return torch.ones_like(self.weight[0])
        return (self._masks(self.weight) * self._in_use()[:, None]).sum(0)

    def overlap(self) -> Float[Tensor, ""]:
        """Return L_s: the mean cosine similarity of m_i and m_j over the ordered pairs i != j in use.

        >>> masks = Masks(dim=4, k_max=2); masks.split_(); round(masks.overlap().item(), 6)
        1.0
        """
        if not self.trained:
            return self.weight.new_zeros(())
        unit = F.normalize(self._masks(self.weight), dim=1) * self._in_use()[:, None]
        cosine = unit @ unit.T
        pairs = self.count * (self.count - 1)
        return (cosine.sum() - cosine.diagonal().sum()) / pairs.clamp(min=1)

    @torch.no_grad()
    def dead(self) -> Float[Tensor, ""]:
        """Return the share of dead entries of the masks in use: at most 1 % of the largest entry of their mask.

        Of K disjoint masks that use every dimension, 1 - 1/K of the entries are dead.

        >>> masks = Masks(dim=4, k_max=2, kind="fixed"); masks.split_(); masks.dead().item()
        0.5
        """
        masks = self.active()
        return (masks <= DEAD * masks.amax(1, keepdim=True)).to(masks.dtype).mean()

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
        self.weight[: 2 * k] = self._inverse(MASKS[self.kind].load()(self.active(), noise=noise, seed=seed))
        self.count.fill_(2 * k)

    @torch.no_grad()
    def project_(self) -> None:
        """Set parameters below 0 to 0 if the activation is ``projected``. Call this after every step of the optimiser.

        ``DivideAndConquer`` does so if it is given the optimiser.

        >>> masks = Masks(dim=2, k_max=2, activation="projected"); masks.split_()
        >>> with torch.no_grad(): masks.weight[0, 0] = -1
        >>> masks.project_(); masks.active().tolist()
        [[0.0, 1.0], [1.0, 1.0]]
        """
        if self.projects:
            self.weight.clamp_(min=0)

    @torch.no_grad()
    def rotate_(self, *, seed: int, epoch: int) -> None:
        """Give ``rotating`` masks to the clusters in the order of an epoch. Other kinds stay as they are.

        >>> masks = Masks(dim=2, k_max=2, kind="rotating"); masks.split_(); masks.rotate_(seed=0, epoch=1)
        >>> masks.active().tolist()
        [[0.0, 1.0], [1.0, 0.0]]
        """
        if MASKS[self.kind].rotates:
            k = self.k
            self.weight[:k] = rotated(self.weight[:k], seed=seed, epoch=epoch)

    def _masks(self, s: Float[Tensor, "k d"]) -> Float[Tensor, "k d"]:
        """Return the masks of some rows of the parameter. While K = 1, the mask is ones and gets no gradient."""
        masks: Tensor = self._activate(s)
        return masks.masked_fill(self.count == 1, 1) if self.trained else masks

    def _in_use(self) -> Tensor:
        return (torch.arange(len(self.weight), device=self.weight.device) < self.count).to(self.weight.dtype)
