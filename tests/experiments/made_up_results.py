"""Results of runs that never took place, for the tests."""

import dataclasses

from divconq.experiments.results import Result, settings
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


def result(row, seed, test, held=None, table=TABLE, **changes):
    """A run whose R@1 is ``test`` at its epochs, in percent, and ``held`` on held-out classes; MAP@R is half of it."""
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
    made = Result(
        table=table.name,
        row=row.name,
        seed=seed,
        settings=settings(table.config(row, seed)),
        overrides={},
        files={},
        code="0123abc",
        hardware="a GPU",
        torch="2.9",
        date=f"2026-01-0{seed + 1}T00:00:00+00:00",
        seconds=2100.0,
        metrics=metrics,
        file=f"{row.name}-{seed}.json",
    )
    return dataclasses.replace(made, **changes)
