"""Selection of an epoch, and statistics over seeds. Numbers in, numbers out."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

Scores = Sequence[float | None]


def last_epoch(scores: Scores) -> int | None:
    """Return the position of the last epoch that was evaluated, or None.

    >>> last_epoch([0.4, None, 0.5, None])
    2
    """
    return max((i for i, score in enumerate(scores) if score is not None), default=None)


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation of n values; the deviation of one value is None."""

    n: int
    mean: float
    deviation: float | None


def summarise(values: Sequence[float]) -> Summary:
    """Return the mean and the sample standard deviation (divided by n - 1) of the values.

    >>> summarise([1.0, 2.0, 3.0])
    Summary(n=3, mean=2.0, deviation=1.0)
    """
    n = len(values)
    if n == 0:
        raise ValueError("there is no mean of no values")
    return Summary(n, float(np.mean(values)), float(np.std(values, ddof=1)) if n > 1 else None)


@dataclass(frozen=True)
class Difference:
    """Mean of n paired differences and its confidence interval; one pair has no interval."""

    n: int
    mean: float
    low: float | None
    high: float | None


def paired_difference(ours: Sequence[float], theirs: Sequence[float], confidence: float = 0.95) -> Difference:
    """Return the mean of ``ours - theirs`` over pairs, with Student's t interval.

    The interval is mean ± t(n - 1) · s / √n, where s is the sample standard deviation of the differences.

    >>> paired_difference([3.0, 5.0], [1.0, 3.0])
    Difference(n=2, mean=2.0, low=2.0, high=2.0)
    """
    if len(ours) != len(theirs):
        raise ValueError(f"pairs are needed, got {len(ours)} and {len(theirs)} values")
    differences = np.subtract(ours, theirs)
    n, mean = len(differences), summarise(differences.tolist()).mean
    if n == 1:
        return Difference(n, mean, None, None)
    half = float(stats.t.ppf(0.5 + confidence / 2, n - 1) * stats.sem(differences))
    return Difference(n, mean, mean - half, mean + half)
