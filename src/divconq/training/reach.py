"""Whether the margin loss asks the classes of a cluster for more distance than their subspace has."""

import math
import warnings

from torch import nn

from divconq.config import Config
from divconq.losses import MarginLoss
from divconq.losses.spherical_codes import reachable_distance
from divconq.masks import MASKS


def warn_if_unreachable(loss: nn.Module, config: Config, *, classes: int) -> None:
    """Warn if the classes of a cluster cannot all be ``beta + alpha`` apart in a block of dimensions.

    A cluster has at least ``classes / k_max`` classes, and its block ``dim / k_max`` dimensions. A learned beta adapts.

    >>> warn_if_unreachable(MarginLoss(), Config.of(masks="fixed"), classes=100)
    """
    if (
        not isinstance(loss, MarginLoss)
        or isinstance(loss.beta, nn.Parameter)
        or not MASKS[config.masks.kind].disjoint
    ):
        return
    k_max, wanted = config.division.k_max, loss.beta + loss.alpha
    own, dim = math.ceil(classes / k_max), config.model.dim // k_max
    reached = reachable_distance(own, dim)
    if wanted > reached:
        lower = math.floor(100 * (reached - loss.alpha)) / 100
        hint = f"lower --beta to {lower:g} or less" if lower > loss.alpha else "lower --beta and --alpha"
        warnings.warn(
            f"the margin loss pushes classes beta + alpha = {wanted:.3g} apart, but the {own} classes of a cluster can "
            f"be at most {reached:.3g} apart in a block of {dim} dimensions; {hint}, raise --dim or lower --k-max",
            stacklevel=2,
        )
