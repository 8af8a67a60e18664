"""The proxy anchor loss: the anchors are learned vectors, one for each class."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from divconq.losses.pairwise import log_one_plus_sum_exp, similarities


class ProxyAnchorLoss(nn.Module):
    """The mean of ``A_c`` over the classes c of the batch, plus the mean of ``R_c`` over all classes.

    ``A_c = log(1 + sum_x exp(-alpha (s_xc - margin)))`` sums over the images x of class c in the batch, and
    ``R_c = log(1 + sum_x exp(alpha (s_xc + margin)))`` over the other images of the batch. ``s_xc`` is the cosine
    similarity of image x and the proxy of class c. The proxies are parameters. They start as random directions
    (``kaiming_normal_``) and have their own learning rate, ``loss_lr_scale`` times that of the network. The defaults
    are those of the paper and of pytorch-metric-learning.
    Kim et al., Proxy Anchor Loss for Deep Metric Learning, 2020.

    >>> loss = ProxyAnchorLoss(num_classes=2, dim=2, alpha=1.0, margin=0.0)
    >>> _ = loss.proxies.detach().copy_(torch.eye(2))
    >>> z = torch.tensor([[1.0, 0.0]])
    >>> loss(z, torch.tensor([0]))  # log(1 + exp(-1)) + log(1 + exp(0)) / 2
    tensor(0.6598, grad_fn=<AddBackward0>)
    """

    takes_mask = True

    def __init__(self, num_classes: int, dim: int, alpha: float = 32.0, margin: float = 0.1) -> None:
        super().__init__()
        if not alpha > 0:
            raise ValueError(f"alpha must be above 0, got {alpha}; the usual value is 32")
        self.alpha, self.margin = alpha, margin
        self.proxies = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.kaiming_normal_(self.proxies, mode="fan_out")

    def forward(
        self,
        embeddings: Float[Tensor, "n d"],
        labels: Int64[Tensor, " n"],
        *,
        mask: Float[Tensor, " d"] | None = None,
    ) -> Float[Tensor, ""]:
        """Return the loss of the batch. ``mask`` moves the proxies into the subspace of the embeddings."""
        proxies = self.proxies.to(embeddings.dtype)
        proxies = F.normalize(proxies if mask is None else proxies * mask)
        s = similarities(embeddings, proxies)
        own = labels[:, None] == torch.arange(len(proxies), device=labels.device)
        attract = log_one_plus_sum_exp(self.alpha * (self.margin - s), own, dim=0)
        repel = log_one_plus_sum_exp(self.alpha * (self.margin + s), ~own, dim=0)
        return attract.sum() / own.any(0).sum() + repel.sum() / len(proxies)
