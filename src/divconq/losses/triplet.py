"""The triplet loss with semi-hard negatives."""

from jaxtyping import Float, Int64
from torch import Tensor, nn

from divconq.losses.mining import semi_hard
from divconq.losses.pairwise import Keys, distances, mean_of_nonzero, pair_masks, squared_distances


class TripletLoss(nn.Module):
    """The mean of the non-zero ``relu(d_ap^2 - d_an^2 + alpha)``.

    Every ordered positive pair takes one negative: the nearest one that is farther than the positive, else the
    farthest. Schroff et al., FaceNet, 2015.

    The authors of divide and conquer take the distances without squaring them (``squared=False``) and the mean over
    all positive pairs, with those whose term is zero (``all_pairs=True``).

    >>> import torch
    >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    >>> TripletLoss()(z, torch.tensor([0, 0, 1]))  # anchor 0: 2 - 4 + 0.2, anchor 1: 2 - 2 + 0.2
    tensor(0.2000)
    >>> TripletLoss(all_pairs=True)(z, torch.tensor([0, 0, 1]))  # two positive pairs
    tensor(0.1000)
    >>> TripletLoss(alpha=0.8, squared=False)(z, torch.tensor([0, 0, 1]))  # 1.4142 - 2 + 0.8, 1.4142 - 1.4142 + 0.8
    tensor(0.5071)
    """

    takes_keys = True

    def __init__(self, alpha: float = 0.2, squared: bool = True, all_pairs: bool = False) -> None:
        super().__init__()
        if not alpha >= 0:
            raise ValueError(f"alpha must be at least 0, got {alpha}; the usual value is 0.2")
        self.alpha, self.squared, self.all_pairs = alpha, squared, all_pairs

    def forward(
        self, embeddings: Float[Tensor, "n d"], labels: Int64[Tensor, " n"], *, keys: Keys | None = None
    ) -> Float[Tensor, ""]:
        """Return the loss of the batch, or of the batch against keys."""
        others, their_labels = keys or (None, None)
        d = (squared_distances if self.squared else distances)(embeddings, others)
        positives, negatives = pair_masks(labels, their_labels)
        negative = d.gather(1, semi_hard(d, negatives))
        terms = (d - negative + self.alpha).relu().masked_fill(~positives, 0.0)
        return terms.sum() / positives.sum().clamp(min=1) if self.all_pairs else mean_of_nonzero(terms)
