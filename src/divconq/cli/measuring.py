"""The commands that run many runs, or measure: reproduce, bench."""

import dataclasses
import json
import sys
import time
from typing import Any

import tyro

from divconq.cli.arguments import BenchArguments, ReproduceArguments
from divconq.cli.speaking import fail
from divconq.io.atomic import write_atomically


def reproduce_command(argv: list[str]) -> None:
    """``divconq reproduce``."""
    parsed = tyro.cli(ReproduceArguments, args=argv, prog="divconq reproduce")
    from divconq import experiments as tables

    if not parsed.tables:
        raise ValueError("no table was named; give a .yaml file such as those in tables/")
    changes = tables.parse_changes(parsed.changes)
    if parsed.backbone is not None:
        changes["backbone"] = parsed.backbone
    for name in ("backbone_weights", "import_file"):
        if (path := getattr(parsed, name)) is not None:
            changes[name] = path.resolve()
    wanted = [tables.load_table(path) for path in parsed.tables]
    if parsed.preset is not None:
        wanted = [table.with_preset(parsed.preset) for table in wanted]
    if parsed.render_only:
        for table in wanted:
            figures = tables.render(table, parsed.out, changes)
            print(json.dumps(figures) if parsed.json else tables.markdown(figures))
        return
    machine = {name: getattr(parsed, name) for name in ("root", "device", "workers", "cache")}
    rows, seeds = (
        tables.select_rows(wanted, tables.parse_names(parsed.rows)),
        tables.parse_seeds(parsed.seeds),
    )
    plans = [
        tables.plan(table, parsed.out, changes, rows=some, seeds=seeds, **machine) for table, some in rows
    ]
    if parsed.dry_run:
        for planned in plans:
            print(tables.plan_text(planned, parsed.out))
        return
    for planned in plans:
        tables.check_losses(planned)
    start, failed = time.monotonic(), list[str]()
    for table, some in rows:
        left = None if parsed.max_minutes is None else parsed.max_minutes - (time.monotonic() - start) / 60
        try:
            outcome = tables.reproduce(
                table,
                parsed.out,
                changes,
                rows=some,
                seeds=seeds,
                max_minutes=left,
                keep_runs=parsed.keep_runs,
                commit=parsed.commit,
                say=lambda line: print(line, file=sys.stderr, flush=True),
                **machine,
            )
        except KeyboardInterrupt:
            fail("stopped; continue from the last checkpoint with the same command", 130)
        print(json.dumps(outcome.figures) if parsed.json else tables.markdown(outcome.figures))
        failed += outcome.failed
    if failed:
        fail(f"{len(failed)} runs failed: {'; '.join(failed)}", 1)


def bench_command(argv: list[str]) -> None:
    """``divconq bench``."""
    parsed = tyro.cli(BenchArguments, args=argv, prog="divconq bench")
    from divconq import bench

    file = None if str(parsed.json) == "-" else parsed.json
    if file is not None and not file.parent.is_dir():
        raise ValueError(f"--json: there is no folder {file.parent}; make it, or name another file")
    sizes = bench.default_sizes(
        parsed.device,
        **{
            name: getattr(parsed, name)
            for name in ("backbone", "image_size", "batch", "images", "dim", "epochs", "rounds")
        },
        clustered=parsed.points,
        searched=parsed.points,
        evaluated=parsed.memory_points,
    )
    names = {field.name for field in dataclasses.fields(bench.Setup)} - {"sizes", "parts"}
    setup = bench.Setup(
        sizes, bench.parse_parts(parsed.only), **{name: getattr(parsed, name) for name in names}
    )

    def keep(report: dict[str, Any]) -> None:
        if file is not None:
            write_atomically(file, lambda path: path.write_text(json.dumps(report, indent=1) + "\n"))

    report = bench.measure(
        setup, say=lambda line: print(f"measuring {line}", file=sys.stderr, flush=True), keep=keep
    )
    print(json.dumps(report) if str(parsed.json) == "-" else bench.text(report))
