"""The multi-similarity loss with the pairs its miner selects."""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from divconq.losses.pairwise import Keys, all_pairs, log_one_plus_sum_exp, similarities


class MultiSimilarityLoss(nn.Module):
    """The mean over anchors a of ``P_a / alpha + N_a / beta``.

    ``P_a = log(1 + sum_p exp(-alpha (s_ap - base)))`` sums over the positives p of the anchor, and
    ``N_a = log(1 + sum_n exp(beta (s_an - base)))`` over its negatives n; ``s`` is the dot product of two embeddings.
    With ``mine``, a positive counts only if ``s_ap - epsilon`` is below the similarity of the nearest negative, and a
    negative only if ``s_an + epsilon`` is above that of the farthest positive. Without it, all pairs count, also those
    of an anchor that has no positive or no negative.

    The defaults are those of pytorch-metric-learning. The paper prints ``base = 1``; the program of its authors has
    0.5. Wang et al., Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning, 2019.

    >>> z = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    >>> MultiSimilarityLoss()(z, torch.tensor([0, 0, 1]))  # only anchor 1 has a hard pair
    tensor(0.1997)
    """

    takes_keys = True

    def __init__(
        self,
        alpha: float = 2.0,
        beta: float = 50.0,
        base: float = 0.5,
        epsilon: float = 0.1,
        mine: bool = True,
    ) -> None:
        super().__init__()
        if not (alpha > 0 and beta > 0 and epsilon >= 0):
            raise ValueError(
                f"alpha and beta must be above 0 and epsilon at least 0, got alpha={alpha}, beta={beta}, "
                f"epsilon={epsilon}; the usual values are alpha=2, beta=50, epsilon=0.1"
            )
        self.alpha, self.beta, self.base, self.epsilon, self.mine = alpha, beta, base, epsilon, mine

    def forward(
        self, embeddings: Float[Tensor, "n d"], labels: Int64[Tensor, " n"], *, keys: Keys | None = None
    ) -> Float[Tensor, ""]:
        """Return the loss of the batch, or of the batch against keys."""
        others, their_labels = keys or (None, None)
        s = similarities(embeddings, others)
        positives, negatives = all_pairs(labels, their_labels)
        if self.mine:
            positives, negatives = hard_pairs(s.detach(), positives, negatives, self.epsilon)
        attract = log_one_plus_sum_exp(-self.alpha * (s - self.base), positives, dim=1) / self.alpha
        repel = log_one_plus_sum_exp(self.beta * (s - self.base), negatives, dim=1) / self.beta
        return (attract + repel).mean()


def hard_pairs(
    s: Float[Tensor, "n m"], positives: Bool[Tensor, "n m"], negatives: Bool[Tensor, "n m"], epsilon: float
) -> tuple[Bool[Tensor, "n m"], Bool[Tensor, "n m"]]:
    """Return the hard positives and the hard negatives.

    A positive is hard if it is less than ``epsilon`` more similar than the nearest negative; a negative, if it is less
    than ``epsilon`` less similar than the farthest positive. An anchor that lacks one kind has no hard pair.

    >>> s = torch.tensor([[0.9, 0.5, 0.45, 0.3]])
    >>> near = torch.tensor([[True, True, False, False]])
    >>> [mask.tolist() for mask in hard_pairs(s, near, ~near, epsilon=0.1)]
    [[[False, True, False, False]], [[False, False, True, False]]]
    """
    nearest_negative = s.masked_fill(~negatives, -torch.inf).amax(1, keepdim=True)
    farthest_positive = s.masked_fill(~positives, torch.inf).amin(1, keepdim=True)
    return positives & (s - epsilon < nearest_negative), negatives & (s + epsilon > farthest_positive)
