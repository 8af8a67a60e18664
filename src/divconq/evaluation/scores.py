"""The table of all metrics: how each is computed, its title and its direction.

The log holds a metric under its name, such as ``recall@1``, ``map@r`` or ``nmi``, for the test images. A prefix
names other images: ``val_`` held-out classes, ``train_`` training images, ``reid_`` galleries of one image per class.

To add a metric, write one function and add one line to ``METRICS``.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from torch import Tensor

from divconq.evaluation.metrics import Ranking, map_at_r, marp, nmi, r_precision, recall_at_k, spread

PREFIXES = ("val", "reid", "train")
PerQuery: TypeAlias = Callable[[Ranking], Tensor]


@dataclass(frozen=True)
class Metric:
    """One row of ``METRICS``.

    ``per_query(ranking)`` returns one number per query; the metric is their mean. If the name ends in ``@k``, it is
    ``per_query(ranking, k)``, and there is one column for each k of ``--ks``. ``of_embeddings(x, labels, seed)``
    returns the metric itself; with ``averaged`` it also takes ``runs``, a number of seeds to average over. A metric
    without a function is counted by ``retrieval_scores``. Scores from 0 to 1 have the unit ``percent``; only these
    appear in tables.
    """

    title: str
    per_query: Callable[..., Tensor] | None = None
    of_embeddings: Callable[..., float] | None = None
    averaged: bool = False
    higher_is_better: bool = True
    unit: Literal["percent", "count", "number"] = "percent"


METRICS: dict[str, Metric] = {
    "recall@k": Metric("R@k", recall_at_k),
    "map@r": Metric("MAP@R", map_at_r),
    "r_precision": Metric("R-precision", r_precision),
    "marp": Metric("mARP", marp),
    "queries": Metric("queries", unit="count"),
    "queries_without_positive": Metric("queries without positive", unit="count"),
    "nmi": Metric("NMI", of_embeddings=nmi, averaged=True),
    "spread": Metric("spread", of_embeddings=lambda x, labels, seed: spread(x), unit="number"),
}


def per_query_metrics(ks: Sequence[int]) -> dict[str, PerQuery]:
    """Return the function of each metric that is a mean over queries, by its name in the log.

    >>> list(per_query_metrics((1, 8)))
    ['recall@1', 'recall@8', 'map@r', 'r_precision', 'marp']
    """
    functions: dict[str, PerQuery] = {}
    for name, metric in METRICS.items():
        if metric.per_query is not None and name.endswith("@k"):
            functions |= {f"{name[:-1]}{k}": partial(metric.per_query, k=k) for k in ks}
        elif metric.per_query is not None:
            functions[name] = metric.per_query
    return functions


def score_names(ks: Sequence[int]) -> list[str]:
    """Return the names of all scores that tables can show.

    >>> score_names((1,))
    ['recall@1', 'map@r', 'r_precision', 'marp', 'nmi']
    """
    of_embeddings = [name for name, metric in METRICS.items() if metric.of_embeddings is not None]
    return [name for name in (*per_query_metrics(ks), *of_embeddings) if is_score(name)]


def title(name: str) -> str:
    """Return the title of a metric in tables.

    >>> title("recall@1"), title("val_map@r"), title("reid_recall@5"), title("train_recall@1")
    ('R@1', 'val MAP@R', 'reid R@5', 'train R@1')
    """
    prefix, name, k = _parse(name)
    if name not in METRICS:
        return f"{prefix} {name}".strip()
    metric = METRICS[name]
    words = metric.title.replace("@k", f"@{k}")
    return f"{prefix} {words}{'' if metric.higher_is_better else ' (lower is better)'}".strip()


def is_score(name: str) -> bool:
    """Return whether a value of the log is a score between 0 and 1, which tables show in percent.

    >>> is_score("recall@1"), is_score("val_nmi"), is_score("train_recall@1"), is_score("loss")
    (True, True, True, False)
    """
    _, name, _ = _parse(name)
    return name in METRICS and METRICS[name].unit == "percent"


def _parse(name: str) -> tuple[str, str, str]:
    """Return the prefix of a name in the log, its row in ``METRICS``, and its k.

    >>> _parse("val_recall@8"), _parse("map@r")
    (('val', 'recall@k', '8'), ('', 'map@r', ''))
    """
    prefix, underscore, rest = name.partition("_")
    prefix, name = (prefix, rest) if underscore and prefix in PREFIXES else ("", name)
    stem, number = re.fullmatch(r"(.*?)(?:@(\d+))?", name).groups()  # type: ignore[union-attr]
    return (prefix, f"{stem}@k", number) if number and f"{stem}@k" in METRICS else (prefix, name, "")
