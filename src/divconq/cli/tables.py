"""Scores as tables for the terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from divconq.evaluation.scores import is_score, title
from divconq.evaluation.selection import best_epoch, fewer_clusters
from divconq.io.terminal import aligned

REID = (
    "reid: the gallery is one random image of each class, all other images are queries; mean over the draws"
)


def score_table(scores: Mapping[str, float]) -> str:
    """Return the scores in percent, one in each line, and the number of queries.

    >>> print(score_table({"recall@1": 0.5, "queries": 10, "queries_without_positive": 0}))
    R@1      50.00
    queries     10
    """
    rows = [(title(name), f"{100 * value:.2f}") for name, value in scores.items() if is_score(name)]
    lines = aligned([*rows, ("queries", f"{scores['queries']:.0f}")], head=False)
    if scores.get("queries_without_positive"):
        lines.append(
            f"left out: {scores['queries_without_positive']:.0f} queries without another image of their class"
            " (of another camera, where cameras are known)"
        )
    if _has_reid(scores):
        lines.append(REID)
    return "\n".join(lines)


def summary(records: Sequence[Mapping[str, Any]], best_by: str, k_max: int, out: Path) -> str:
    """Return the summary of a run: scores of the last and the best epoch, time of each phase, next commands."""
    scored = [record for record in records if best_by in record]
    place = best_epoch([record[best_by] for record in scored], [record.get("k") for record in scored])
    last, best = scored[-1], scored[place or 0]
    fewer = fewer_clusters(best.get("k"), k_max)
    names = [name for name in last if is_score(name) and name in best]
    rows = [("", *(title(name) for name in names))]
    for label, record, note in (("last", last, ""), ("best", best, fewer and f", {fewer}")):
        cells = (f"{100 * record[name]:.2f}" for name in names)
        rows.append((f"{label} (epoch {record['epoch']}{note})", *cells))
    seconds: dict[str, float] = {}
    for record in records:
        for phase, spent in record.get("seconds", {}).items():
            seconds[phase] = seconds.get(phase, 0.0) + spent
    total = sum(seconds.values())
    phases = ", ".join(
        f"{phase} {spent:.1f} s ({100 * spent / max(total, 1e-9):.0f}%)" for phase, spent in seconds.items()
    )
    score = title(best_by.removeprefix("val_"))
    where = "classes held out of training" if best_by.startswith("val_") else "the test classes"
    return "\n".join(
        [
            "",
            *aligned(rows),
            *([REID] if _has_reid(last) else []),
            f"best epoch by {score} on {where}"
            + (f"; {fewer or 'K = ' + str(best['k'])}" if "k" in best else ""),
            f"time: {phases}",
            "",
            f"run folder:  {out}",
            f"look at it:  divconq analyze {out}",
            f"score again: divconq eval {out}",
            f"embed yours: divconq embed {out} --data FOLDER --out embeddings.npz",
        ]
    )


def _has_reid(scores: Mapping[str, Any]) -> bool:
    return any(name.startswith("reid_") for name in scores)
