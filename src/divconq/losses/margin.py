"""The margin loss with distance-weighted negatives."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from divconq.losses.mining import distance_weighted, distance_weighted_without_replacement
from divconq.losses.pairwise import Keys, distances, mean_of_nonzero, pair_masks


class MarginLoss(nn.Module):
    """The sum of ``relu(d_ap - beta + alpha) + relu(beta - d_an + alpha)`` over the number of non-zero terms.

    Every ordered pair of anchor and positive draws one negative closer than ``beta + alpha``, if there is one. With
    ``num_classes``, one ``beta`` is learned for each class of the anchor. ``sampling_dim`` is the dimension D of the
    density that weights the negatives, by default that of the embedding. The block of a fixed mask has fewer
    dimensions; a smaller D also draws negatives that are farther away. ``without_replacement`` gives an anchor
    a different negative for each of its positives. ``equal_pairs`` gives all anchors the same weight, for any
    number of positives. Wu et al., Sampling Matters in Deep Embedding Learning, 2017.

    >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    >>> MarginLoss()(z, torch.tensor([0, 0, 1]))
    tensor(0.4142)
    """

    takes_keys = True

    def __init__(
        self,
        alpha: float = 0.2,
        beta: float = 1.2,
        num_classes: int | None = None,
        sampling_dim: int | None = None,
        without_replacement: bool = False,
        equal_pairs: bool = False,
    ) -> None:
        super().__init__()
        if not (alpha >= 0 and beta > 0):
            raise ValueError(
                f"alpha must be at least 0 and beta above 0, got alpha={alpha}, beta={beta}; "
                "the usual values are alpha=0.2, beta=1.2"
            )
        if not beta - alpha > 0:
            raise ValueError(
                f"beta - alpha must be above 0, got beta={beta}, alpha={alpha}: no positive can be close enough; "
                "raise beta or lower alpha"
            )
        if not beta + alpha < 2:
            raise ValueError(
                f"beta + alpha must be below 2, got beta={beta}, alpha={alpha}: two unit vectors are at most 2 apart, "
                "so no negative can be far enough; lower beta or alpha"
            )
        if sampling_dim is not None and not sampling_dim >= 2:
            raise ValueError(
                f"sampling_dim must be at least 2, got {sampling_dim}; leave it out for all dimensions"
            )
        self.alpha, self.sampling_dim = alpha, sampling_dim
        self.without_replacement, self.equal_pairs = without_replacement, equal_pairs
        self.beta: float | nn.Parameter = beta
        if num_classes is not None:
            self.beta = nn.Parameter(torch.full((num_classes,), float(beta)))

    def forward(
        self,
        embeddings: Float[Tensor, "n d"],
        labels: Int64[Tensor, " n"],
        *,
        keys: Keys | None = None,
        uniform: Float[Tensor, "n m"] | None = None,
    ) -> Float[Tensor, ""]:
        """Return the loss of the batch, or of the batch against keys.

        ``uniform`` in [0, 1) selects the negatives; by default it is random.
        """
        others, their_labels = keys or (None, None)
        d = distances(embeddings, others)
        positives, negatives = pair_masks(labels, their_labels)
        beta = self._beta_of(labels, like=d)
        if uniform is None:
            uniform = torch.rand_like(d)
        dim = self.sampling_dim or embeddings.shape[1]
        cutoff = beta + self.alpha
        if self.without_replacement:
            index, drawn = distance_weighted_without_replacement(
                d, positives, negatives, uniform, dim, cutoff
            )
        else:
            index, drawn = distance_weighted(d, negatives, uniform, dim, cutoff)
        attract = (d - beta[:, None] + self.alpha).relu().masked_fill(~positives, 0.0)
        repel = (beta[:, None] - d.gather(1, index) + self.alpha).relu()
        repel = repel.masked_fill(~(positives & drawn), 0.0)
        weights = None
        if self.equal_pairs:
            weights = positives.sum(1, keepdim=True).clamp(min=1).to(d.dtype).reciprocal()
        return mean_of_nonzero(torch.stack([attract, repel]), weights)

    def _beta_of(self, labels: Int64[Tensor, " n"], like: Tensor) -> Float[Tensor, " n"]:
        if isinstance(self.beta, nn.Parameter):
            return self.beta.to(like.dtype).index_select(0, labels)
        return like.new_full(labels.shape, self.beta)
