"""The n-pairs loss: cross-entropy over the similarities of a batch."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from divconq.losses.pairwise import Keys, pair_masks, similarities


class NPairsLoss(nn.Module):
    """The mean over anchors a of ``-1/|P_a| sum_p log(exp(t s_ap) / sum_j exp(t s_aj))``, j != a.

    ``s`` is the dot product of two embeddings, ``P_a`` the other images of the anchor's class, and ``t`` a learned
    scale that starts at ``scale``. The authors of divide and conquer start at 1, where all images of a batch have
    almost the same weight, and learn ``t`` at a rate of 1 (``--loss.scale 1 --loss-lr-scale 100000``).
    Sohn, Improved Deep Metric Learning with Multi-class N-pair Loss Objective, 2016.

    >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> round(NPairsLoss(scale=1.0)(z, torch.tensor([0, 0, 1])).item(), 4)  # log(1 + exp(-1))
    0.3133
    """

    takes_keys = True

    def __init__(self, scale: float = 16.0) -> None:
        super().__init__()
        if not scale > 0:
            raise ValueError(f"scale must be above 0, got {scale}; the usual value is 16")
        self.scale = nn.Parameter(torch.tensor(float(scale)))

    def forward(
        self, embeddings: Float[Tensor, "n d"], labels: Int64[Tensor, " n"], *, keys: Keys | None = None
    ) -> Float[Tensor, ""]:
        """Return the loss of the batch, or of the batch against keys."""
        others, their_labels = keys or (None, None)
        logits = self.scale.to(embeddings.dtype) * similarities(embeddings, others)
        positives, negatives = pair_masks(labels, their_labels)
        # The lowest finite number instead of -inf: the row of an anchor that does not count has no other entry.
        logits = logits.masked_fill(~(positives | negatives), torch.finfo(logits.dtype).min)
        log_likelihood = logits.log_softmax(1).masked_fill(~positives, 0.0)
        count = positives.sum(1)
        per_anchor = -log_likelihood.sum(1) / count.clamp(min=1)
        return per_anchor.sum() / (count > 0).sum().clamp(min=1)
