"""Which epoch counts, and what several seeds say together: numbers in, numbers out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

Scores = Sequence[float | None]


def last_epoch(scores: Scores) -> int | None:
    """The last epoch that was evaluated, as a position.

    >>> last_epoch([0.4, None, 0.5, None])
    2
    """
    return max((i for i, score in enumerate(scores) if score is not None), default=None)


def best_epoch(scores: Scores) -> int | None:
    """The first epoch with the highest score, as a position.

    >>> best_epoch([0.4, 0.6, None, 0.6])
    1
    """
    evaluated = [(score, -i) for i, score in enumerate(scores) if score is not None]
    return -max(evaluated)[1] if evaluated else None


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation (n - 1 below the fraction) of n values; one value has no deviation."""

    n: int
    mean: float
    deviation: float | None


def summarise(values: Sequence[float]) -> Summary:
    """What the seeds of one row say.

    >>> summarise([1.0, 2.0, 3.0])
    Summary(n=3, mean=2.0, deviation=1.0)
    """
    n = len(values)
    if n == 0:
        raise ValueError("there is no mean of no values")
    mean = math.fsum(values) / n
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1)) if n > 1 else None
    return Summary(n, mean, deviation)


@dataclass(frozen=True)
class Difference:
    """Mean of n paired differences, and its 95% interval; one pair has no interval."""

    n: int
    mean: float
    low: float | None
    high: float | None


def paired_difference(ours: Sequence[float], theirs: Sequence[float], confidence: float = 0.95) -> Difference:
    """Mean of ours - theirs, pair by pair, with Student's interval: mean ± t(n - 1) · deviation / √n.

    >>> paired_difference([3.0, 5.0], [1.0, 3.0])
    Difference(n=2, mean=2.0, low=2.0, high=2.0)
    """
    if len(ours) != len(theirs):
        raise ValueError(f"pairs are needed, got {len(ours)} and {len(theirs)} values")
    summary = summarise([a - b for a, b in zip(ours, theirs, strict=True)])
    if summary.deviation is None:
        return Difference(summary.n, summary.mean, None, None)
    from scipy.stats import t

    quantile = float(t.ppf(0.5 + confidence / 2, summary.n - 1))
    half = quantile * summary.deviation / math.sqrt(summary.n)
    return Difference(summary.n, summary.mean, summary.mean - half, summary.mean + half)
