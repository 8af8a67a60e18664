"""The soft triplet loss with semi-hard negatives."""

import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from divconq.losses.mining import semi_hard
from divconq.losses.pairwise import Keys, distances, pair_masks


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

    takes_keys = True

    def forward(
        self, embeddings: Float[Tensor, "n d"], labels: Int64[Tensor, " n"], *, keys: Keys | None = None
    ) -> Float[Tensor, ""]:
        """Return the loss of the batch, or of the batch against keys."""
        others, their_labels = keys or (None, None)
        d = distances(embeddings, others)
        positives, negatives = pair_masks(labels, their_labels)
        negative = d.gather(1, semi_hard(d, negatives))
        terms = F.softplus(d - negative).masked_fill(~positives, 0.0)
        return terms.sum() / positives.sum().clamp(min=1)
