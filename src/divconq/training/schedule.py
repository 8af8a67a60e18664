"""When a run divides, how many clusters it gets to, and when its backbone rests."""

import warnings

from divconq.config import Config


def divides(config: Config, epoch: int) -> bool:
    """Whether the data is divided before this epoch: every E epochs, a flat division also at the start.

    >>> [epoch for epoch in range(9) if divides(Config.of(divide_every=4), epoch)]
    [4, 8]
    """
    starts = 0 if config.division.strategy == "flat" else 1
    return config.division.k_max > 1 and epoch >= starts and epoch % config.division.divide_every == 0


def k_reached(config: Config) -> int:
    """The number of clusters in the last epoch: a division doubles it until it is ``k_max``, a flat one makes all.

    >>> [k_reached(Config.of(k_max=16, epochs=30, divide_every=every)) for every in (5, 10, 20)]
    [16, 4, 2]
    """
    divisions = sum(divides(config, epoch) for epoch in range(config.optimisation.epochs))
    return (
        config.division.k_max
        if config.division.strategy == "flat"
        else min(config.division.k_max, 2**divisions)
    )


def warn_of_few_epochs(config: Config) -> None:
    """Warn when a run will end before it has as many clusters as its settings say.

    >>> warn_of_few_epochs(Config.of(k_max=4, epochs=30, divide_every=10))
    """
    if (k := k_reached(config)) < config.division.k_max:
        k_max, every = config.division.k_max, config.division.divide_every
        doublings = k_max.bit_length() - 1
        warnings.warn(
            f"the run will end with K = {k} of k_max = {k_max}, since it divides every {every} of "
            f"its {config.optimisation.epochs} epochs; raise --epochs above {doublings * every}, or lower "
            "--divide-every or --k-max",
            stacklevel=2,
        )


def backbone_rests(config: Config, epoch: int) -> bool:
    """Whether only head and masks train, because a division has just taken place.

    >>> [epoch for epoch in range(9) if backbone_rests(Config.of(divide_every=4, freeze_backbone_epochs=1), epoch)]
    [4, 8]
    """
    return any(
        divides(config, recent)
        for recent in range(max(0, epoch - config.division.freeze_backbone_epochs + 1), epoch + 1)
    )


def epoch_seed(seed: int, epoch: int) -> int:
    """One number for all that is random in an epoch, so that a resumed run draws the same.

    >>> epoch_seed(0, 3), epoch_seed(1, 3)
    (3, 1000006)
    """
    return (seed * 1_000_003 + epoch) % 2**63
