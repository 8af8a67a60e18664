"""The figures of a table: find the results of its rows and compute their statistics over the seeds."""

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from divconq.config import BEST_BY
from divconq.evaluation.selection import best_epoch, clusters_wanted, fewer_clusters
from divconq.experiments.numeric_setting import curves_of
from divconq.experiments.results import Result
from divconq.experiments.settings import agree
from divconq.experiments.statistics import last_epoch, paired_difference, summarise
from divconq.experiments.table import Row, Table

SELECTIONS = {
    "last": "last epoch",
    "held_out": "epoch selected on held-out classes",
    "test": "best test epoch",
}
Runs = dict[int, Result]


def overrides_of(table: Table, results: Sequence[Result], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides of the stored results of a table, including those ``given``.

    Raise ValueError if the results have different overrides. Overrides equal to the setting in the table are left
    out. A result of another table cannot override the common flags of this table, for example its backbone.
    """
    own = table.settings(table.rows[0], table.rows[0].seeds[0], {})
    found: list[dict[str, Any]] = []
    for result in results:
        has_given = all(result.overrides.get(name) == value for name, value in given.items())
        overrides = {
            name: value for name, value in result.overrides.items() if name in given or own.get(name) != value
        }
        if not has_given or overrides in found or table.clash(overrides) is not None:
            continue
        if result.table != table.name and (overrides.keys() - given.keys()) & table.common.keys():
            continue
        if any(agree(result.settings, table.settings(*run, overrides)) for run in table.runs()):
            found.append(overrides)
    if dict(given) in found or not found:
        return dict(given)
    if len(found) > 1:
        sets = "; ".join(json.dumps(overrides) for overrides in found)
        raise ValueError(f"{table.name} was run with different settings, say which with --set: {sets}")
    return found[0]


def find_runs(table: Table, results: Sequence[Result], overrides: Mapping[str, Any]) -> dict[str, Runs]:
    """Return the results of each row by seed. If a run has two results, the first one counts."""
    found: dict[str, Runs] = {row.name: {} for row in table.rows}
    for row, seed in table.runs():
        wanted = table.settings(row, seed, overrides)
        match = next((result for result in results if agree(result.settings, wanted)), None)
        if match is not None:
            found[row.name][seed] = match
    return found


def selected_epoch(result: Result, selection: str) -> int | None:
    """Return the index of the epoch that ``selection`` picks, or None if no epoch has the score for it."""
    if selection == "last":
        return last_epoch(result.metrics.get("recall@1", []))
    scores = result.metrics.get(BEST_BY[selection])
    return None if scores is None else best_epoch(scores, result.metrics.get("k", ()))


def selected_early(result: Result, selection: str) -> str:
    """Return "K = 2 of 4" if the selected epoch has fewer clusters than asked for, else ""."""
    position, ks = selected_epoch(result, selection), result.metrics.get("k", [])
    if position is None or not ks or not isinstance(result.settings.get("k_max"), int):
        return ""
    return fewer_clusters(ks[position], clusters_wanted(result.settings))


def summary(table: Table, results: Sequence[Result], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return all figures of a table, with scores in percent, as input for ``render``."""
    found = find_runs(table, results, overrides)
    used = {id(result): result for runs in found.values() for result in runs.values()}
    origins = Counter((run.code, run.hardware, run.torch) for run in used.values())
    held_out = any(selected_epoch(run, "held_out") is not None for run in used.values())
    return {
        "table": table.name,
        "title": table.title,
        "preset": table.preset,
        "overrides": dict(overrides),
        "unit": "percent",
        "metrics": list(table.metrics),
        "selections": [name for name in SELECTIONS if name != "held_out" or held_out],
        "rows": [_row_figures(table, row, found) for row in table.rows],
        "curves": curves_of(
            {row.name: table.settings(row, row.seeds[0], overrides) for row in table.rows},
            {row.name: row.title for row in table.rows},
        ),
        "origins": [
            {"code": code, "hardware": hardware, "torch": torch, "runs": runs}
            for (code, hardware, torch), runs in sorted(origins.items())
        ],
    }


def _row_figures(table: Table, row: Row, found: Mapping[str, Runs]) -> dict[str, Any]:
    runs, base = found[row.name], found[row.baseline] if row.baseline else {}
    return {
        "row": row.name,
        "title": row.title,
        "section": row.section,
        "flags": json.loads(json.dumps(dict(row.flags))),
        "baseline": row.baseline,
        "seeds": list(row.seeds),
        "missing": [seed for seed in row.seeds if seed not in runs],
        "paper": dict(row.paper),
        **figures_of(runs, base, table.metrics),
    }


def figures_of(runs: Runs, base: Runs, metrics: Sequence[str]) -> dict[str, Any]:
    """Return scores, selected epochs, seconds and names of the runs of a row. ``base`` are the runs of its baseline."""
    epochs = {
        selection: {
            seed: int(run.metrics["epoch"][position] or 0)
            for seed, run in runs.items()
            if (position := selected_epoch(run, selection)) is not None
        }
        for selection in SELECTIONS
    }
    return {
        "scores": {
            metric: {selection: _score(runs, base, metric, selection) for selection in SELECTIONS}
            for metric in metrics
        },
        "epochs": epochs,
        "fewer_clusters": {
            selection: {
                seed: words for seed, run in runs.items() if (words := selected_early(run, selection))
            }
            for selection in SELECTIONS
        },
        "seconds": _cost(runs, base),
        "runs": [run.name for run in runs.values()],
    }


def _score(runs: Runs, base: Runs, metric: str, selection: str) -> dict[str, Any] | None:
    ours, theirs = _values(runs, metric, selection), _values(base, metric, selection)
    if not ours:
        return None
    pairs = [seed for seed in ours if seed in theirs]
    difference = paired_difference([ours[s] for s in pairs], [theirs[s] for s in pairs]) if pairs else None
    return {
        **dataclasses.asdict(summarise(list(ours.values()))),
        "values": ours,
        "difference": difference and dataclasses.asdict(difference),
    }


def _values(runs: Runs, metric: str, selection: str) -> dict[int, float]:
    values = {}
    for seed, run in runs.items():
        position, column = selected_epoch(run, selection), run.metrics.get(metric)
        if position is not None and column is not None and (score := column[position]) is not None:
            values[seed] = 100 * score
    return values


def _cost(runs: Runs, base: Runs) -> dict[str, float | None] | None:
    """Return the mean cost in seconds and its ratio to the baseline, over pairs on the same hardware."""
    if not runs:
        return None
    pairs = [seed for seed in runs if seed in base and runs[seed].hardware == base[seed].hardware]
    theirs = sum(base[seed].cost for seed in pairs)
    ratio = sum(runs[seed].cost for seed in pairs) / theirs if theirs else None
    return {"mean": sum(run.cost for run in runs.values()) / len(runs), "over_baseline": ratio}
