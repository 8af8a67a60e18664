"""Runs side by side: those that differ by their seed only are one row, named by the settings that rows differ in.

divconq compare runs/demo runs/demo-2 --metric recall@1,nmi
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from divconq.checks import did_you_mean
from divconq.config import Config
from divconq.evaluation.scores import is_score
from divconq.experiments.figures import figures_of, selected_epoch
from divconq.experiments.render import shown
from divconq.experiments.results import Result, columns, portable, read_result, read_results, settings
from divconq.experiments.statistics import summarise
from divconq.experiments.table import NOT_OF_THE_RESULT
from divconq.runs.folder import Run

LONGEST_NAME = 4  # settings; rows that differ in more of them are called by their first run
MEANING = {
    "last": "The last epoch needs no choice.",
    "held_out": "Held-out classes are training classes that were not trained on; MAP@R on them chose the epoch.",
    "test": "The best test epoch is chosen by R@1 on the test classes themselves and flatters.",
}


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that are the same but for the seed; ``number`` counts groups whose seeds are the same, too."""

    settings: dict[str, Any]
    number: int
    runs: dict[int, Result]


def compare(paths: Sequence[Path], metrics: Sequence[str] = ()) -> dict[str, Any]:
    """The figures of run folders, and of results that ``reproduce`` keeps, in the form that its renderers take.

    A row for each set of settings; mean and deviation are over its seeds, at the last epoch and at the best by the
    run's own criterion: MAP@R on held-out classes if there are any, else R@1 on the test classes.
    """
    runs = read_runs(paths)
    groups = group(runs)
    metrics = _metrics(runs, metrics)
    names = _names(groups)
    held_out = [bool(a.settings["val_classes"]) for a in groups]
    selections = [
        "last",
        *(["held_out"] if any(held_out) else []),
        *(["test"] if not all(held_out) else []),
    ]
    remarks = [_remark(run) for run in runs]
    return {
        "title": f"{len(runs)} runs",
        "unit": "percent",
        "metrics": metrics,
        "selections": selections,
        "rows": [
            _row(name, differing, runs, metrics)
            for (name, differing), runs in zip(names, (a.runs for a in groups), strict=True)
        ],
        "notes": [
            "In percent: mean ± sample standard deviation over the seeds.",
            *(MEANING[selection] for selection in selections),
            "Training: seconds of training and division, without evaluation.",
            *_what_names_mean(names, groups),
            *(remark for remark in remarks if remark),
        ],
    }


def read_runs(paths: Sequence[Path]) -> list[Result]:
    """Run folders, files that ``reproduce`` has kept, and folders of such files; each of them once."""
    runs: list[Result] = []
    for path in dict.fromkeys(path.resolve() for path in paths):
        given = next(other for other in paths if other.resolve() == path)
        if path.is_file():
            runs.append(read_result(given))
        elif not (path / "config.yaml").is_file() and any(path.glob("*.json")):
            runs += read_results(given)
        else:
            runs.append(_read_run(given))
    if not runs:
        raise ValueError("there is nothing to compare; name one run folder or several")
    return runs


def _read_run(folder: Path) -> Result:
    run = Run.open(folder)
    records = [record for record in run.metrics() if isinstance(record, dict) and "epoch" in record]
    return Result(
        table="",
        row="",
        seed=run.config.optimisation.seed,
        settings=_settings(run.config),
        overrides={},
        files={},
        code="",
        hardware="",
        torch="",
        date="",
        seconds=sum(sum(record.get("seconds", {}).values()) for record in records),
        metrics=columns(records),
        file=str(folder),
    )


def _settings(config: Config) -> dict[str, Any]:
    """What defines a run; a file that is not on this machine counts by its name."""
    values = {name: value for name, value in config.settings().items() if name not in NOT_OF_THE_RESULT}
    gone = {name: v.name for name, v in values.items() if isinstance(v, Path) and not v.is_file()}
    return portable({**values, **gone})


def group(runs: Sequence[Result]) -> list[Group]:
    """Put runs together that differ by their seed only, in the order they come; a seed that is there goes elsewhere."""
    groups: dict[tuple[str, int], Group] = {}
    seen: Counter[tuple[str, int]] = Counter()
    for run in runs:
        what = {**settings(Config()), **run.settings}  # a result may be older than a setting
        what = {name: value for name, value in what.items() if name not in ("seed", *NOT_OF_THE_RESULT)}
        key = json.dumps(what, sort_keys=True)
        number = seen[key, run.seed]
        seen[key, run.seed] += 1
        groups.setdefault((key, number), Group(what, number, {})).runs[run.seed] = run
    return list(groups.values())


def _names(groups: Sequence[Group]) -> list[tuple[str, dict[str, Any]]]:
    """What each group is called, and the settings in which it may differ from the others."""
    every = dict.fromkeys(name for a in groups for name in a.settings)
    differ = [name for name in every if len({json.dumps(a.settings.get(name)) for a in groups}) > 1]
    names = []
    for a in groups:
        differing = {name: a.settings.get(name) for name in differ}
        name = _in_words(differing) or str(a.settings["data"])
        if len(differ) > LONGEST_NAME:
            name = _called(next(iter(a.runs.values())))
        names.append((f"{name} ({a.number + 1})" if a.number else name, differing))
    return names


def _in_words(differing: dict[str, Any]) -> str:
    words = {"true": "on", "false": "off", "null": "none"}
    texts = {name: shown(value) for name, value in differing.items()}
    return ", ".join(f"{name} {words.get(text, text)}" for name, text in texts.items())


def _called(run: Result) -> str:
    return Path(run.file).stem if run.file.endswith(".json") else Path(run.file).resolve().name


def _what_names_mean(names: Sequence[tuple[str, dict[str, Any]]], groups: Sequence[Group]) -> list[str]:
    notes = []
    if any(len(differing) > LONGEST_NAME for _, differing in names):
        notes += [f"{name}: {_in_words(differing)}." for name, differing in names]
    for (name, _), a in zip(names, groups, strict=True):
        if a.number:
            files = ", ".join(run.file for run in a.runs.values())
            notes.append(f"{name} has the settings and the seeds of a row above it: {files}.")
    return notes


def _row(
    name: str, differing: dict[str, Any], runs: dict[int, Result], metrics: Sequence[str]
) -> dict[str, Any]:
    figures = figures_of(runs, {}, metrics)
    trained = [run.cost for run in runs.values() if run.metrics.get("epoch")]
    cost = {**dataclasses.asdict(summarise(trained)), "over_baseline": None} if trained else None
    return {
        "row": name,
        "title": name,
        "flags": differing,
        "baseline": None,
        "seeds": list(runs),
        "missing": [seed for seed, run in runs.items() if selected_epoch(run, "last") is None],
        "paper": {},
        **figures,
        "seconds": cost,
    }


def _metrics(runs: Sequence[Result], asked: Sequence[str]) -> list[str]:
    known = list(dict.fromkeys(name for run in runs for name in run.metrics if is_score(name)))
    for name in asked:
        if name not in known:
            has = f"these runs have {', '.join(known)}" if known else "no epoch of these runs was evaluated"
            raise ValueError(f"unknown metric {name!r}: {has}{did_you_mean(name, known)}")
    recalls = sorted((n for n in known if n.startswith("recall@")), key=lambda n: int(n.partition("@")[2]))
    usual = [*recalls, *(name for name in ("map@r", "nmi") if name in known)]
    return list(asked) or usual or ["recall@1"]


def _remark(run: Result) -> str | None:
    """What one has to know of a run that did not come to its end."""
    done = int((run.metrics.get("epoch") or [0])[-1] or 0)
    if selected_epoch(run, "last") is None:
        return f"{run.file} was never evaluated: {done} of {run.settings['epochs']} epochs are there."
    if done < run.settings["epochs"]:
        return f"{run.file} is not at its end: {done} of {run.settings['epochs']} epochs are there."
    return None
