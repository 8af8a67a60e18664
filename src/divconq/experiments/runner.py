"""Execute the runs of a table: skip finished runs, continue stopped ones, store each result."""

import datetime
import gc
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from divconq.checks import did_you_mean
from divconq.config import Config
from divconq.evaluation.scores import title
from divconq.experiments.figures import (
    SELECTIONS,
    find_runs,
    overrides_of,
    selected_early,
    selected_epoch,
    summary,
)
from divconq.experiments.origin import code_version, hardware
from divconq.experiments.render import write_table
from divconq.experiments.results import Result, append_result, columns, read_results
from divconq.experiments.settings import agree, portable
from divconq.experiments.table import Row, Table
from divconq.io.locks import FileLock, LockedError
from divconq.training.stop_signals import StopSignals

FINISHED, SCRATCH = "finished", "runs"


@dataclass(frozen=True)
class PlannedRun:
    """A run of a table: its config, the settings that define it, and its result if it is finished."""

    row: Row
    seed: int
    config: Config
    settings: dict[str, Any]
    name: str
    result: Result | None

    def __str__(self) -> str:
        return f"{self.row.name}, seed {self.seed}"


@dataclass(frozen=True)
class Outcome:
    """The figures of a table, the failed runs, and whether the time limit was reached."""

    figures: dict[str, Any]
    failed: tuple[str, ...] = ()
    out_of_time: bool = False


def render(table: Table, out: Path, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the figures of a table from the results in ``out``. Write them to ``out`` as Markdown, LaTeX and JSON."""
    results = read_results(out / FINISHED)
    figures = summary(table, results, overrides_of(table, results, portable(changes or {})))
    write_table(figures, out)
    return figures


def select_rows(tables: Sequence[Table], names: Collection[str]) -> list[tuple[Table, list[str]]]:
    """Select rows by name across tables; without names, all rows of all tables.

    Returns pairs of a table and its selected row names, for each table with selected rows.

    >>> from divconq.experiments.table import parse_table
    >>> table = parse_table("one", "{title: One, preset: cub, rows: {margin: {flags: {k_max: 1}}}}")
    >>> [rows for _, rows in select_rows([table], ["margin"])]
    [['margin']]
    """
    known = dict.fromkeys(row.name for table in tables for row in table.rows)
    for name in names:
        if name not in known:
            all_of_them = ", ".join(table.name for table in tables)
            hint = did_you_mean(name, known)
            raise ValueError(f"{all_of_them} has no row {name!r}: choose from {', '.join(known)}{hint}")
    selected = [(table, [row.name for row in table.rows if row.name in names]) for table in tables]
    return [(table, rows) for table, rows in selected if rows or not names]


def plan(
    table: Table,
    out: Path,
    changes: Mapping[str, Any] | None = None,
    *,
    rows: Collection[str] = (),
    seeds: Collection[int] = (),
    **machine: object,
) -> list[PlannedRun]:
    """Return the runs of a table, or of some of its rows and seeds, in execution order."""
    changes = changes or {}
    changed, overrides = table.with_changes(changes), portable(changes)
    select_rows([table], rows)
    if unknown := set(seeds) - {seed for row in table.rows for seed in row.seeds}:
        raise ValueError(f"{table.name} has no seed {min(unknown)}; edit its seeds")
    found = find_runs(table, read_results(out / FINISHED), overrides)
    planned = []
    for row, seed in table.runs():
        if (not rows or row.name in rows) and (not seeds or seed in seeds):
            config, settings = changed.config(row, seed, **machine), table.settings(row, seed, overrides)
            name = run_name(table, row, seed, settings)
            planned.append(PlannedRun(row, seed, config, settings, name, found[row.name].get(seed)))
    return planned


def run_name(table: Table, row: Row, seed: int, settings: Mapping[str, Any]) -> str:
    """Return the name of a run: preset, row, seed, and a digest of its settings."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    return f"{row.preset or table.preset}-{row.name}-{seed}-{digest[:8]}"


def plan_text(planned: Collection[PlannedRun], out: Path) -> str:
    """Return the output of ``--dry-run``, one line per run."""
    lines = []
    for run in planned:
        begun = (out / SCRATCH / run.name / "last.pt").is_file()
        state = f"done, {run.result.name}" if run.result else "begun" if begun else "to do"
        lines.append(f"{run}: {state}")
    return "\n".join([*lines, f"{sum(run.result is not None for run in planned)} of {len(planned)} are done"])


def check_losses(planned: Collection[PlannedRun]) -> None:
    """Check names, arguments and files of every run, so an error in any row appears before the first run starts."""
    from divconq.training.setup import check_names

    seen: list[object] = []
    for run in planned:
        named = (run.config.data, run.config.model, run.config.loss, run.config.optimisation.per_class)
        if named in seen:
            continue
        seen.append(named)
        try:
            check_names(run.config)
        except ValueError as error:
            raise ValueError(f"row {run.row.name}: {error}") from error


def reproduce(
    table: Table,
    out: Path,
    changes: Mapping[str, Any] | None = None,
    *,
    rows: Collection[str] = (),
    seeds: Collection[int] = (),
    max_minutes: float | None = None,
    keep_runs: bool = False,
    commit: str | None = None,
    say: Callable[[str], None] = print,
    stop: StopSignals | None = None,
    **machine: object,
) -> Outcome:
    """Execute the runs that ``out`` lacks, one after the other, and render the table after each.

    ``changes`` replace settings in all rows and are stored with each result. ``stop`` ends the run in progress with a
    checkpoint and raises ``Stopped``. ``machine`` are settings that do not change a result: root, device, workers,
    cache. Several processes may execute one table: each skips the runs that another one executes.
    """
    changes = changes or {}
    planned = plan(table, out, changes, rows=rows, seeds=seeds, **machine)
    check_losses(planned)
    missing = [run for run in planned if run.result is None]
    say(f"{table.name}: {len(planned)} runs, {len(planned) - len(missing)} done")
    start, code, failed = time.monotonic(), code_version(commit), list[str]()
    finished = [run.result for run in planned if run.result is not None]
    first = len(finished) + 1
    for number, run in enumerate(missing, first):
        if any(agree(result.settings, run.settings) for result in finished[first - 1 :]):
            continue  # another row has the same settings
        expected = _expected_seconds(finished, hardware(run.config.settings()["device"]))
        elapsed = time.monotonic() - start
        if max_minutes is not None and elapsed + expected > 60 * max_minutes:
            say(
                f"{len(planned) - number + 1} runs are left: the next takes about {expected:.0f} s, and "
                f"{elapsed:.0f} s of {60 * max_minutes:.0f} s are spent; run the same command again"
            )
            return Outcome(_render_with(table, out, changes), tuple(failed), out_of_time=True)
        try:
            result = execute(table, run, out, changes, code=code, keep=keep_runs, stop=stop)
        except FloatingPointError as error:
            failed.append(f"{run}: {error}")
            say(f"[{number}/{len(planned)}] {failed[-1]}")
            continue
        except LockedError as error:
            say(f"[{number}/{len(planned)}] {run}: left out: {error}, and run the same command again")
            continue
        finally:
            release_memory()
        finished.append(result)
        say(f"[{number}/{len(planned)}] {run}: {_one_line(result)}")
        _render_with(table, out, changes)
        if stop is not None and stop.wished:
            raise stop.stopped()
    return Outcome(_render_with(table, out, changes), tuple(failed))


def _expected_seconds(finished: Sequence[Result], here: str) -> float:
    """Return the mean duration in seconds of the runs on the hardware ``here``."""
    times = [result.seconds for result in finished if result.hardware == here]
    return sum(times) / max(1, len(times))


def _render_with(table: Table, out: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Render only the results that were made with exactly these changes."""
    figures = summary(table, read_results(out / FINISHED), portable(changes))
    write_table(figures, out)
    return figures


def execute(
    table: Table,
    run: PlannedRun,
    out: Path,
    changes: Mapping[str, Any],
    *,
    code: str,
    keep: bool,
    stop: StopSignals | None = None,
) -> Result:
    """Train or continue one run, and store and return its result. Delete the run folder unless ``keep``.

    If another process executes the run, raise LockedError. If it has finished the run, return its result.
    """
    folder = out / SCRATCH / run.name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{run.name}.lock"), folder):
        if (done := _finished_meanwhile(table, run, out, changes)) is not None:
            return done
        start, records = time.monotonic(), _train(run, folder, stop)
        result = _result(table, run, changes, code, records, time.monotonic() - start)
        append_result(out / FINISHED / f"{table.name}.jsonl", result)
        if not keep:
            shutil.rmtree(folder)
    return result


def _finished_meanwhile(
    table: Table, run: PlannedRun, out: Path, changes: Mapping[str, Any]
) -> Result | None:
    """Return the result of the run if another process has stored it since the runs were planned."""
    found = find_runs(table, read_results(out / FINISHED), portable(changes))
    return found[run.row.name].get(run.seed)


def _train(run: PlannedRun, folder: Path, stop: StopSignals | None) -> list[dict[str, Any]]:
    """Train or continue a run and return its log."""
    from divconq.train import train

    begun = (folder / "last.pt").is_file()
    if folder.exists() and not begun:
        shutil.rmtree(folder)  # it was stopped in its first epoch
    return train(run.config, folder, resume=begun, stop=stop)


def _result(
    table: Table,
    run: PlannedRun,
    changes: Mapping[str, Any],
    code: str,
    records: Sequence[Mapping[str, Any]],
    elapsed: float,
) -> Result:
    """Return the result of a run from its log."""
    import torch

    logged = sum(sum(record["seconds"].values()) for record in records)  # includes the time before a resume
    return Result(
        table=table.name,
        row=run.row.name,
        seed=run.seed,
        settings=run.settings,
        overrides=portable(changes),
        files={name: value.name for name, value in changes.items() if isinstance(value, Path)},
        code=code,
        hardware=hardware(run.config.settings()["device"]),
        torch=torch.__version__,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seconds=round(max(elapsed, logged), 1),
        metrics=columns(records),
        name=run.name,
    )


def release_memory() -> None:
    """Free the memory of the last run, on the host and on the GPU."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _one_line(result: Result) -> str:
    parts = []
    for selection, words in SELECTIONS.items():
        position = selected_epoch(result, selection)
        if position is not None:
            score = result.metrics["recall@1"][position] or 0.0
            fewer = "" if selection == "last" else selected_early(result, selection)
            epoch = f"{result.metrics['epoch'][position]}{fewer and f', {fewer}'}"
            parts.append(f"{100 * score:.2f} {words} ({epoch})")
    return f"{title('recall@1')} {', '.join(parts)}; {result.seconds:.0f} s"
