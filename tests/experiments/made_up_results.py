"""Made-up results for the tests."""

import dataclasses
import json

from divconq.experiments.results import Result
from divconq.experiments.settings import settings_of
from divconq.experiments.table import parse_table

TEXT = """
title: Two rows, 50% made_up
preset: demo
baseline: plain
seeds: [0, 1, 2]
metrics: [recall@1, map@r]
rows:
  plain:
    title: plain training
    flags: {k_max: 1, masks: none}
    paper: {recall@1: 66.93}
  fixed:
    title: fixed masks
    flags: {masks: fixed}
    paper: {recall@1: 68.43}
"""
TABLE = parse_table("made_up", TEXT)


def result(row, seed, test, held=None, table=TABLE, k=None, **changes):
    """Return a result with R@1 ``test`` per epoch, in percent, and MAP@R ``held`` on held-out classes.

    ``k`` are the numbers of clusters; a result of an old version may lack them.
    """
    row = next(each for each in table.rows if each.name == row)
    metrics = {
        "epoch": list(range(1, len(test) + 1)),
        "recall@1": [score if score is None else score / 100 for score in test],
        "map@r": [score if score is None else score / 200 for score in test],
        "seconds_train": [50.0 if row.name == "plain" else 51.0] * len(test),
        "seconds_evaluate": [1000.0] * len(test),
    }
    if held is not None:
        metrics["val_map@r"] = [score / 100 for score in held]
    if k is not None:
        metrics["k"] = k
    made = Result(
        table=table.name,
        row=row.name,
        seed=seed,
        settings=settings_of(table.config(row, seed)),
        overrides={},
        files={},
        code="0123abc",
        hardware="a GPU",
        torch="2.9",
        date=f"2026-01-0{seed + 1}T00:00:00+00:00",
        seconds=2100.0,
        metrics=metrics,
        name=f"{row.name}-{seed}",
    )
    return dataclasses.replace(made, **changes)


def write_old_result(file, result):
    """Write a result as older versions did: one JSON file per run, named by the run."""
    values = dataclasses.asdict(result)
    del values["name"]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"format": "divconq result 1", **values}, indent=1))
