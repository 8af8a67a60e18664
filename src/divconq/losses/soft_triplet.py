"""The soft triplet loss with semi-hard negatives."""

import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from divconq.losses.mining import semi_hard
from divconq.losses.pairwise import distances, pair_masks


class SoftTripletLoss(nn.Module):
    """The mean of ``log(1 + exp(d_ap - d_an))`` over all ordered positive pairs.

    Every pair takes one semi-hard negative, as in ``TripletLoss``. The loss has no margin: easy and hard triplets have
    about the same weight. Over all triplets, most of which are easy, it would make a good network worse.
    Hermans et al., In Defense of the Triplet Loss for Person Re-Identification, 2017.

    >>> import torch
    >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> SoftTripletLoss()(z, torch.tensor([0, 0, 1]))  # log(1 + exp(0 - sqrt(2)))
    tensor(0.2176)
    """

    def forward(self, embeddings: Float[Tensor, "n d"], labels: Int64[Tensor, " n"]) -> Float[Tensor, ""]:
        """Return the loss of the batch."""
        d = distances(embeddings)
        positives, _ = pair_masks(labels)
        negative = d.gather(1, semi_hard(d, labels))
        terms = F.softplus(d - negative).masked_fill(~positives, 0.0)
        return terms.sum() / positives.sum().clamp(min=1)
