"""The triplet loss with semi-hard negatives."""

from jaxtyping import Float, Int64
from torch import Tensor, nn

from divconq.losses.mining import semi_hard
from divconq.losses.pairwise import Keys, mean_of_nonzero, pair_masks, squared_distances


class TripletLoss(nn.Module):
    """The mean of the non-zero ``relu(d_ap^2 - d_an^2 + alpha)``.

    Every ordered positive pair takes one negative: the nearest one that is farther than the positive, else the
    farthest. Schroff et al., FaceNet, 2015.

    >>> import torch
    >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    >>> TripletLoss()(z, torch.tensor([0, 0, 1]))  # anchor 0: 2 - 4 + 0.2, anchor 1: 2 - 2 + 0.2
    tensor(0.2000)
    """

    takes_keys = True

    def __init__(self, alpha: float = 0.2) -> None:
        super().__init__()
        if not alpha >= 0:
            raise ValueError(f"alpha must be at least 0, got {alpha}; the usual value is 0.2")
        self.alpha = alpha

    def forward(
        self, embeddings: Float[Tensor, "n d"], labels: Int64[Tensor, " n"], *, keys: Keys | None = None
    ) -> Float[Tensor, ""]:
        """Return the loss of the batch, or of the batch against keys."""
        others, their_labels = keys or (None, None)
        d2 = squared_distances(embeddings, others)
        positives, negatives = pair_masks(labels, their_labels)
        negative = d2.gather(1, semi_hard(d2, negatives))
        return mean_of_nonzero((d2 - negative + self.alpha).relu().masked_fill(~positives, 0.0))
