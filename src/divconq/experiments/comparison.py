"""Compare runs. Runs that differ only in their seed form one row, named by the settings that vary between rows.

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
from divconq.experiments.render import fewer_clusters_note, shown
from divconq.experiments.results import SUFFIXES, Result, columns, read_result_file, read_results
from divconq.experiments.settings import IGNORED, default_settings, portable
from divconq.experiments.statistics import summarise
from divconq.runs.folder import Run

MOST_SETTINGS_IN_A_NAME = 4  # with more, a row is named after its first run
SELECTION_NOTES = {
    "last": "The last epoch involves no selection.",
    "held_out": "Held-out classes are training classes that are not trained on; MAP@R on them selects the epoch.",
    "test": "The best test epoch is selected by R@1 on the test classes themselves, so it is too optimistic.",
}


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed; ``number`` counts groups with the same settings and seeds."""

    settings: dict[str, Any]
    number: int
    runs: dict[int, Result]


def compare(paths: Sequence[Path], metrics: Sequence[str] = ()) -> dict[str, Any]:
    """Return the figures of run folders and stored results, as input for ``render``.

    Each set of settings is a row. Mean and deviation are over its seeds, at the last epoch and at the best epoch.
    The best epoch has the highest MAP@R on held-out classes or, without these, the highest R@1 on the test classes.
    """
    runs = read_runs(paths)
    groups = group(runs)
    metrics = _metrics(runs, metrics)
    names = _names(groups)
    held_out = [bool(each.settings["val_classes"]) for each in groups]
    selections = [
        "last",
        *(["held_out"] if any(held_out) else []),
        *(["test"] if not all(held_out) else []),
    ]
    remarks = [_remark(run) for run in runs]
    row_figures = [
        _row(name, differing, each.runs, metrics)
        for (name, differing), each in zip(names, groups, strict=True)
    ]
    return {
        "title": f"{len(runs)} runs",
        "unit": "percent",
        "metrics": metrics,
        "selections": selections,
        "rows": row_figures,
        "notes": [
            "Scores are in percent: mean ± sample standard deviation over the seeds.",
            *(SELECTION_NOTES[selection] for selection in selections),
            "Training: seconds of training and division, without evaluation.",
            *_name_notes(names, groups),
            *(remark for remark in remarks if remark),
            *fewer_clusters_note(row_figures, selections),
        ],
    }


def read_runs(paths: Sequence[Path]) -> list[Result]:
    """Return the results in run folders, result files and folders of result files. Repeated paths count once."""
    given: dict[Path, Path] = {}
    for path in paths:
        given.setdefault(path.resolve(), path)
    runs: list[Result] = []
    for path in given.values():
        is_run = not path.is_dir() or (path / "config.yaml").is_file()
        if path.is_file():
            runs += read_result_file(path)
        elif not is_run and any(file.suffix in SUFFIXES for file in path.iterdir()):
            runs += read_results(path)
        else:
            runs.append(_read_run(path))
    if not runs:
        raise ValueError("there is nothing to compare; name one run folder or several")
    return runs


def _read_run(folder: Path) -> Result:
    run = Run.open(folder)
    records = [record for record in run.metrics() if isinstance(record, dict) and "epoch" in record]
    settings = _settings(run.config)
    return Result(
        table="",
        row="",
        seed=settings["seed"],
        settings=settings,
        overrides={},
        files={},
        code="",
        hardware="",
        torch="",
        date="",
        seconds=sum(sum(record.get("seconds", {}).values()) for record in records),
        metrics=columns(records),
        name=str(folder),
    )


def _settings(config: Config) -> dict[str, Any]:
    """Return the settings that define a run. A missing file is represented by its name."""
    values = {name: value for name, value in config.settings().items() if name not in IGNORED}
    gone = {name: v.name for name, v in values.items() if isinstance(v, Path) and not v.is_file()}
    return portable({**values, **gone})


def group(runs: Sequence[Result]) -> list[Group]:
    """Group runs that differ only in their seed; a second run with the same settings and seed starts a new group."""
    groups: dict[tuple[str, int], Group] = {}
    seen: Counter[tuple[str, int]] = Counter()
    for run in runs:
        settings = {**default_settings(), **run.settings}  # the result may be older than a setting
        settings = {name: value for name, value in settings.items() if name not in ("seed", *IGNORED)}
        key = json.dumps(settings, sort_keys=True)
        number = seen[key, run.seed]
        seen[key, run.seed] += 1
        groups.setdefault((key, number), Group(settings, number, {})).runs[run.seed] = run
    return list(groups.values())


def _names(groups: Sequence[Group]) -> list[tuple[str, dict[str, Any]]]:
    """Return the name of each group, and its values of the settings that vary between groups."""
    every = dict.fromkeys(name for each in groups for name in each.settings)
    differ = [name for name in every if len({json.dumps(each.settings.get(name)) for each in groups}) > 1]
    names = []
    for each in groups:
        differing = {name: each.settings.get(name) for name in differ}
        name = _in_words(differing) or str(each.settings["data"])
        if len(differ) > MOST_SETTINGS_IN_A_NAME:
            name = Path(next(iter(each.runs.values())).name).resolve().name
        names.append((f"{name} ({each.number + 1})" if each.number else name, differing))
    return names


def _in_words(differing: dict[str, Any]) -> str:
    words = {"true": "on", "false": "off", "null": "none"}
    texts = {name: shown(value) for name, value in differing.items()}
    return ", ".join(f"{name} {words.get(text, text)}" for name, text in texts.items())


def _name_notes(names: Sequence[tuple[str, dict[str, Any]]], groups: Sequence[Group]) -> list[str]:
    notes = []
    if any(len(differing) > MOST_SETTINGS_IN_A_NAME for _, differing in names):
        notes += [f"{name}: {_in_words(differing)}." for name, differing in names]
    for (name, _), each in zip(names, groups, strict=True):
        if each.number:
            runs = ", ".join(run.name for run in each.runs.values())
            notes.append(f"{name} has the settings and the seeds of a row above it: {runs}.")
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
    """Return a note about a run that is not complete, or None."""
    done, epochs = int((run.metrics.get("epoch") or [0])[-1] or 0), run.settings.get("epochs", 0)
    if selected_epoch(run, "last") is None:
        return f"{run.name} was never evaluated; it has {done} of {epochs} epochs."
    if done < epochs:
        return f"{run.name} is not complete; it has {done} of {epochs} epochs."
    return None
