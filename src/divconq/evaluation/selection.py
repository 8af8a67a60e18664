"""Selection of the best epoch: the most clusters first, then the score."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

Rank = tuple[float, float]  # number of clusters and score: compared in this order
LOWEST: Rank = (0, -math.inf)


def rank_epoch(score: float, k: float | None) -> Rank:
    """Return the rank of an epoch with ``k`` clusters; the best epoch has the highest one.

    An epoch with more clusters beats one with fewer; among epochs with the same K the score decides. So an epoch
    before the first division never represents a run that divides later. A score of NaN is below all others. An
    unknown K, in the log of an older version, counts as 0.

    >>> rank_epoch(0.6, 4) > rank_epoch(0.7, 1), rank_epoch(0.6, 4) > rank_epoch(0.5, 4)
    (True, True)
    """
    if math.isnan(score):
        return LOWEST
    return (k if k is not None and math.isfinite(k) else 0, score)


def best_epoch(scores: Sequence[float | None], ks: Sequence[float | None] = ()) -> int | None:
    """Return the position of the first epoch with the highest rank, or None if no epoch has a score.

    ``ks`` are the numbers of clusters of the epochs; without them, the score alone decides.

    >>> best_epoch([0.4, 0.6, None, 0.6]), best_epoch([0.4, 0.6, None, 0.5], [1, 1, 2, 2])
    (1, 3)
    """
    ks = ks or [None] * len(scores)
    ranks = [
        (rank_epoch(score, k), -position)
        for position, (score, k) in enumerate(zip(scores, ks, strict=True))
        if score is not None
    ]
    return -max(ranks)[1] if ranks else None


def clusters_wanted(settings: Mapping[str, Any]) -> int:
    """Return the number of clusters that the settings of a run ask for: ``k_max``, or 1 with the head ``clml``.

    >>> clusters_wanted({"k_max": 4, "head": "linear"}), clusters_wanted({"k_max": 4, "head": "clml"})
    (4, 1)
    """
    return 1 if settings.get("head") == "clml" else int(settings.get("k_max", 1))


def fewer_clusters(k: float | None, k_max: int) -> str:
    """Return the words for an epoch that was selected with fewer clusters than asked for, else "".

    >>> fewer_clusters(2, 4), fewer_clusters(4, 4), fewer_clusters(None, 4)
    ('K = 2 of 4', '', '')
    """
    return f"K = {k:g} of {k_max}" if k is not None and k < k_max else ""
