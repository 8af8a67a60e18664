"""The base loss of a run, with its arguments and settings."""

from torch import nn

from divconq.config import Config
from divconq.losses import check_loss, make_loss, with_settings
from divconq.training.reach import warn_if_unreachable


def check_base_loss(config: Config) -> None:
    """Raise ValueError for a loss that cannot be trained with. Opens no data.

    >>> check_base_loss(Config.of(loss="margin", beta=0.9))
    """
    loss = config.loss
    check_loss(
        loss.name,
        _arguments(config),
        dim=config.model.dim,
        per_class=config.optimisation.per_class,
        miner=loss.miner,
        miner_arguments=loss.miner_args,
        memory=loss.memory,
    )


def make_base_loss(config: Config, *, classes: int) -> nn.Module:
    """Return the loss for a number of training classes. Warn if they cannot be as far apart as it asks for.

    >>> make_base_loss(Config.of(loss="margin", beta=0.9), classes=100).beta
    0.9
    """
    loss = make_loss(
        config.loss.name,
        _arguments(config),
        num_classes=classes,
        dim=config.model.dim,
        miner=config.loss.miner,
        miner_arguments=config.loss.miner_args,
    )
    warn_if_unreachable(loss, config, classes=classes)
    return loss


def _arguments(config: Config) -> dict[str, object]:
    loss = config.loss
    return with_settings(loss.name, loss.args, alpha=loss.alpha, beta=loss.beta)
