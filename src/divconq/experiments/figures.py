"""The figures of a table: which results belong to it, and what the seeds of each row say together."""

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from divconq.config import BEST_BY
from divconq.experiments.results import Result, agree, settings, wanted
from divconq.experiments.statistics import best_epoch, last_epoch, paired_difference, summarise
from divconq.experiments.table import Row, Table

SELECTIONS = {
    "last": "last epoch",
    "held_out": "epoch chosen on held-out classes",
    "test": "best test epoch",
}
Runs = dict[int, Result]


def overrides_of(table: Table, results: Sequence[Result], given: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides that a table's results were made with, ``given`` among them, if that is not ambiguous.

    What the table sets for all its rows, another backbone say, only runs made for this very table may override;
    a run that was given the same is as good as the table's own.
    """
    own = settings(table.config(table.rows[0], table.rows[0].seeds[0]))
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
        if any(agree(result.settings, wanted(table, *run, overrides)) for run in table.runs()):
            found.append(overrides)
    if dict(given) in found or not found:
        return dict(given)
    if len(found) > 1:
        sets = "; ".join(json.dumps(overrides) for overrides in found)
        raise ValueError(f"{table.name} was run with different settings, say which with --set: {sets}")
    return found[0]


def find_runs(table: Table, results: Sequence[Result], overrides: Mapping[str, Any]) -> dict[str, Runs]:
    """For each row the results it has, by seed; of two results of one run the older."""
    found: dict[str, Runs] = {row.name: {} for row in table.rows}
    for row, seed in table.runs():
        now = wanted(table, row, seed, overrides)
        match = next((result for result in results if agree(result.settings, now)), None)
        if match is not None:
            found[row.name][seed] = match
    return found


def selected_epoch(result: Result, selection: str) -> int | None:
    """The position of the epoch that counts; None if none was evaluated that way."""
    if selection == "last":
        return last_epoch(result.metrics.get("recall@1", []))
    return best_epoch(result.metrics.get(BEST_BY[selection], []))


def summary(table: Table, results: Sequence[Result], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The whole table as numbers, in percent; Markdown and LaTeX are made of it."""
    found = find_runs(table, results, overrides)
    used = {result.file: result for runs in found.values() for result in runs.values()}
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
        "rows": [_row_summary(table, row, found) for row in table.rows],
        "origins": [
            {"code": code, "hardware": hardware, "torch": torch, "runs": runs}
            for (code, hardware, torch), runs in sorted(origins.items())
        ],
    }


def _row_summary(table: Table, row: Row, found: Mapping[str, Runs]) -> dict[str, Any]:
    runs, base = found[row.name], found[row.baseline] if row.baseline else {}
    return {
        "row": row.name,
        "title": row.title,
        "flags": json.loads(json.dumps(dict(row.flags))),
        "baseline": row.baseline,
        "seeds": list(row.seeds),
        "missing": [seed for seed in row.seeds if seed not in runs],
        "paper": dict(row.paper),
        **figures_of(runs, base, table.metrics),
    }


def figures_of(runs: Runs, base: Runs, metrics: Sequence[str]) -> dict[str, Any]:
    """What the seeds of a row say together, over those of its baseline: scores, epochs they are of, seconds, files."""
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
        "seconds": _cost(runs, base),
        "files": [run.file for run in runs.values()],
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
    """Mean seconds of training, and their ratio to the baseline's over pairs made on the same hardware."""
    if not runs:
        return None
    pairs = [seed for seed in runs if seed in base and runs[seed].hardware == base[seed].hardware]
    theirs = sum(base[seed].cost for seed in pairs)
    ratio = sum(runs[seed].cost for seed in pairs) / theirs if theirs else None
    return {"mean": sum(run.cost for run in runs.values()) / len(runs), "over_baseline": ratio}
