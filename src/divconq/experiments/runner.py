"""Run what a table lacks: skip what is done, continue what was stopped, keep one small file of each run."""

import datetime
import gc
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from divconq.config import Config
from divconq.evaluation.scores import title
from divconq.experiments.figures import SELECTIONS, find_runs, overrides_of, selected_epoch, summary
from divconq.experiments.render import write_table
from divconq.experiments.results import (
    Result,
    code_version,
    columns,
    hardware,
    portable,
    read_results,
    run_name,
    wanted,
    write_result,
)
from divconq.experiments.table import Row, Table, share_rows

FINISHED, SCRATCH = "finished", "runs"


@dataclass(frozen=True)
class Planned:
    """A run of a table: how it is made, and its result if there is one."""

    row: Row
    seed: int
    config: Config
    name: str
    result: Result | None

    def __str__(self) -> str:
        return f"{self.row.name}, seed {self.seed}"


@dataclass(frozen=True)
class Outcome:
    """What became of a table: its figures, runs that failed, and whether time ran out before all were made."""

    figures: dict[str, Any]
    failed: tuple[str, ...] = ()
    out_of_time: bool = False


def render(table: Table, out: Path, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The table's figures from the results in ``out`` alone, also written there as Markdown, LaTeX and JSON."""
    results = read_results(out / FINISHED)
    figures = summary(table, results, overrides_of(table, results, portable(changes or {})))
    write_table(figures, out)
    return figures


def plan(
    table: Table,
    out: Path,
    changes: Mapping[str, Any] | None = None,
    *,
    rows: Collection[str] = (),
    seeds: Collection[int] = (),
    **machine: object,
) -> list[Planned]:
    """The runs of a table, or of some rows and seeds of it, in the order they are made."""
    changes = changes or {}
    changed, overrides = table.with_changes(changes), portable(changes)
    share_rows([table], rows)
    if unknown := set(seeds) - {seed for row in table.rows for seed in row.seeds}:
        raise ValueError(f"{table.name} has no seed {min(unknown)}; edit its seeds")
    found = find_runs(table, read_results(out / FINISHED), overrides)
    return [
        Planned(
            row,
            seed,
            changed.config(row, seed, **machine),
            run_name(table, row, seed, wanted(table, row, seed, overrides)),
            found[row.name].get(seed),
        )
        for row, seed in table.runs()
        if (not rows or row.name in rows) and (not seeds or seed in seeds)
    ]


def plan_text(planned: Collection[Planned], out: Path) -> str:
    """What ``--dry-run`` prints: a line a run."""
    lines = []
    for job in planned:
        begun = (out / SCRATCH / job.name / "last.pt").is_file()
        state = f"done, {job.result.file}" if job.result else "begun" if begun else "to do"
        lines.append(f"{job}: {state}")
    return "\n".join([*lines, f"{sum(job.result is not None for job in planned)} of {len(planned)} are done"])


def check_losses(planned: Collection[Planned]) -> None:
    """Build the loss of every run once, so that a mistake in the last row shows before the first one runs."""
    from divconq.losses import make_loss
    from divconq.model import import_file

    seen: list[object] = []
    for job in planned:
        config = job.config
        if config.model.import_file is not None:
            import_file(config.model.import_file)
        loss = (
            config.loss.name,
            config.loss.args,
            config.loss.miner,
            config.loss.miner_args,
            config.model.dim,
        )
        if loss in seen:
            continue
        seen.append(loss)
        try:
            make_loss(
                config.loss.name,
                config.loss.args,
                num_classes=2,
                dim=config.model.dim,
                miner=config.loss.miner,
                miner_arguments=config.loss.miner_args,
            )
        except ValueError as error:
            raise ValueError(f"row {job.row.name}: {error}") from error


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
    **machine: object,
) -> Outcome:
    """Make the runs that ``out`` lacks, one after the other, and render the table after each.

    ``changes`` are settings changed in all rows and recorded with each result; ``machine`` (root, device,
    workers, cache) does not change a run's outcome.
    """
    changes = changes or {}
    planned = plan(table, out, changes, rows=rows, seeds=seeds, **machine)
    check_losses(planned)
    waiting = [job for job in planned if job.result is None]
    say(f"{table.name}: {len(planned)} runs, {len(planned) - len(waiting)} done")
    start, code, failed = time.monotonic(), code_version(commit), list[str]()
    finished = [job.result for job in planned if job.result is not None]
    for number, job in enumerate(waiting, len(finished) + 1):
        here = hardware(job.config.runtime.device)
        times = [result.seconds for result in finished if result.hardware == here]
        expected, elapsed = sum(times) / max(1, len(times)), time.monotonic() - start
        if max_minutes is not None and elapsed + expected > 60 * max_minutes:
            say(
                f"{len(planned) - number + 1} runs are left: the next takes about {expected:.0f} s, and "
                f"{elapsed:.0f} s of {60 * max_minutes:.0f} s are spent; run the same command again"
            )
            return Outcome(_render_with(table, out, changes), tuple(failed), out_of_time=True)
        try:
            result = make(table, job, out, changes, code=code, keep=keep_runs)
        except FloatingPointError as error:
            failed.append(f"{job}: {error}")
            say(f"[{number}/{len(planned)}] {failed[-1]}")
            continue
        finally:
            release_memory()
        finished.append(result)
        say(f"[{number}/{len(planned)}] {job}: {_one_line(result)}")
        _render_with(table, out, changes)
    return Outcome(_render_with(table, out, changes), tuple(failed))


def _render_with(table: Table, out: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Render with exactly these changes, whatever else lies in the folder."""
    figures = summary(table, read_results(out / FINISHED), portable(changes))
    write_table(figures, out)
    return figures


def make(
    table: Table, job: Planned, out: Path, changes: Mapping[str, Any], *, code: str, keep: bool
) -> Result:
    """Train one run, or continue it, and keep its result; the run folder goes unless ``keep``."""
    import torch

    from divconq.train import train

    folder = out / SCRATCH / job.name
    begun = (folder / "last.pt").is_file()
    if folder.exists() and not begun:
        shutil.rmtree(folder)  # it was stopped in its first epoch
    start = time.monotonic()
    records = train(job.config, folder, resume=begun)
    metrics = columns(records)
    logged = sum(sum(record["seconds"].values()) for record in records)  # also before it was continued
    result = Result(
        table=table.name,
        row=job.row.name,
        seed=job.seed,
        settings=wanted(table, job.row, job.seed, portable(changes)),
        overrides=portable(changes),
        files={name: value.name for name, value in changes.items() if isinstance(value, Path)},
        code=code,
        hardware=hardware(job.config.runtime.device),
        torch=torch.__version__,
        date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        seconds=round(max(time.monotonic() - start, logged), 1),
        metrics=metrics,
    )
    write_result(out / FINISHED, job.name, result)
    if not keep:
        shutil.rmtree(folder)
    return result


def release_memory() -> None:
    """Give back what the last run held, on the host and on the GPU."""
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
            parts.append(f"{100 * score:.2f} {words} ({result.metrics['epoch'][position]})")
    return f"{title('recall@1')} {', '.join(parts)}; {result.seconds:.0f} s"
