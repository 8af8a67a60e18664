"""The soft triplet loss over all triplets."""

import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from divconq.losses.pairwise import distances, pair_masks


class SoftTripletLoss(nn.Module):
    """``log(1 + exp(d_ap - d_an))``, the mean over all triplets of the batch.

    Holds all n^3 differences at once: 6 MB in float32 for a batch of 112.

    >>> import torch
    >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> SoftTripletLoss()(z, torch.tensor([0, 0, 1]))  # log(1 + exp(0 - sqrt(2)))
    tensor(0.2176)
    """

    def forward(self, embeddings: Float[Tensor, "n d"], labels: Int64[Tensor, " n"]) -> Float[Tensor, ""]:
        """Compute the loss of the batch."""
        d = distances(embeddings)
        positives, negatives = pair_masks(labels)
        triplets = positives[:, :, None] & negatives[:, None, :]
        terms = F.softplus(d[:, :, None] - d[:, None, :]).masked_fill(~triplets, 0.0)
        return terms.sum() / triplets.sum().clamp(min=1)
