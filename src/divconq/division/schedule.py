"""The schedule of divisions, and the number of clusters that a run reaches."""

import warnings

from divconq.division.strategies import DIVISIONS


def divides(epoch: int, strategy: str, k_max: int, divide_every: int) -> bool:
    """Return whether the data is divided before ``epoch``: every E epochs, with flat division also at the start.

    >>> [epoch for epoch in range(9) if divides(epoch, "progressive", k_max=4, divide_every=4)]
    [4, 8]
    """
    first = 0 if DIVISIONS[strategy].at_once else 1
    return k_max > 1 and epoch >= first and epoch % divide_every == 0


def k_reached(epochs: int, strategy: str, k_max: int, divide_every: int) -> int:
    """Return the number of clusters in the last of ``epochs`` epochs: a division doubles it up to ``k_max``.

    >>> [k_reached(30, "progressive", k_max=16, divide_every=every) for every in (5, 10, 20)]
    [16, 4, 2]
    """
    if DIVISIONS[strategy].at_once:
        return k_max
    divisions = sum(divides(epoch, strategy, k_max, divide_every) for epoch in range(epochs))
    return min(k_max, 1 << divisions)


def warn_if_too_short(epochs: int, strategy: str, k_max: int, divide_every: int) -> None:
    """Warn if a run of ``epochs`` epochs ends before it has ``k_max`` clusters.

    >>> warn_if_too_short(30, "progressive", k_max=4, divide_every=10)
    """
    if (k := k_reached(epochs, strategy, k_max, divide_every)) < k_max:
        enough = (k_max.bit_length() - 1) * divide_every
        warnings.warn(
            f"the run will end with K = {k} of k_max = {k_max}, since it divides every {divide_every} of its {epochs} "
            f"epochs; raise --epochs above {enough}, or lower --divide-every or --k-max",
            stacklevel=2,
        )
