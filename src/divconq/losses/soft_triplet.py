"""The soft triplet loss with semi-hard negatives."""

import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from divconq.losses.mining import semi_hard
from divconq.losses.pairwise import distances, pair_masks


class SoftTripletLoss(nn.Module):
    """``log(1 + exp(d_ap - d_an))``, the mean over all ordered positive pairs.

    Every pair takes one negative, as in ``TripletLoss``. It has no margin: each triplet, easy or hard, weighs about
    1/2, and over all triplets, most of which are easy, training makes a good network worse. Hermans et al., 2017.

    >>> import torch
    >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> SoftTripletLoss()(z, torch.tensor([0, 0, 1]))  # log(1 + exp(0 - sqrt(2)))
    tensor(0.2176)
    """

    def forward(self, embeddings: Float[Tensor, "n d"], labels: Int64[Tensor, " n"]) -> Float[Tensor, ""]:
        """Compute the loss of the batch."""
        d = distances(embeddings)
        positives, _ = pair_masks(labels)
        negative = d.gather(1, semi_hard(d, labels))
        terms = F.softplus(d - negative).masked_fill(~positives, 0.0)
        return terms.sum() / positives.sum().clamp(min=1)
