"""The objective of one batch: any loss in the subspace of its cluster, plus the overlap loss of the masks."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from divconq.losses.memory import Memory
from divconq.losses.pairwise import Keys
from divconq.masks import Masks


class Objective(nn.Module):
    """L = loss(normalize(f * m_k), labels) + lambda * L_s  (paper, equation 6, where m_k = relu(s_k)).

    ``loss`` is any callable ``loss(embeddings, labels)``. Without a cluster, the loss is computed in the conquered
    space; the masks then get no gradient and L_s is omitted. A loss with the attribute ``takes_mask`` also receives the
    mask of the space, see ``divconq.losses``.

    With a ``memory``, ``memory_weight`` times the loss of the batch against the past embeddings is added. Their raw f
    takes the mask of this batch and gets no gradient. The batch is stored after that, so no image is compared with
    itself.

    >>> objective = Objective(lambda z, labels: (z[0] * z[1]).sum(), Masks(dim=2, k_max=1))
    >>> round(objective(torch.tensor([[3.0, 4.0], [4.0, 3.0]]), torch.tensor([0, 0]), cluster=0).item(), 4)
    0.96
    """

    def __init__(
        self,
        loss: Callable[..., Tensor],
        masks: Masks,
        overlap_weight: float = 1.0,
        memory: Memory | None = None,
        memory_weight: float = 1.0,
    ) -> None:
        super().__init__()
        self.loss, self.masks, self.overlap_weight = loss, masks, overlap_weight
        self.memory, self.memory_weight = memory, memory_weight

    def forward(
        self, f: Float[Tensor, "n d"], labels: Int64[Tensor, " n"], cluster: int | Int64[Tensor, ""] | None
    ) -> Float[Tensor, ""]:
        """Return the value to minimise for a batch of ``cluster``, computed in float32 or better."""
        with torch.autocast(f.device.type, enabled=False):
            f = f.float() if f.dtype in (torch.bfloat16, torch.float16) else f
            value = self._loss(f, labels, cluster)
            return value if cluster is None else value + self.overlap_weight * self.masks.overlap()

    def _loss(self, f: Tensor, labels: Tensor, cluster: int | Tensor | None) -> Tensor:
        """Return the base loss of a batch, and store the batch in the memory."""
        z, more = F.normalize(self._in_space(f, cluster)), {}
        if getattr(self.loss, "takes_mask", False):
            more["mask"] = self._in_space(f.new_ones(1, f.shape[1]), cluster)[0]
        value: Tensor = self.loss(z, labels, **more)
        if self.memory is None:
            return value
        with torch.no_grad():
            past = F.normalize(self._in_space(self.memory.f.to(f.dtype), cluster))
        value = value + self.memory_weight * self.loss(z, labels, keys=Keys(past, self.memory.labels), **more)
        self.memory.store(f, labels)
        return value

    def _in_space(self, f: Tensor, cluster: int | Tensor | None) -> Tensor:
        """Return the embeddings in the subspace of a cluster, or in the conquered space."""
        if cluster is None:
            return f * self.masks.conquer().detach()
        return self.masks.select(f, cluster)
