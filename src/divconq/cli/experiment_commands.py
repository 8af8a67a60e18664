"""The commands for many runs and for speed: reproduce, bench."""

import dataclasses
import json
import time
from typing import Any

from divconq.cli.arguments import BenchArguments, ReproduceArguments
from divconq.cli.messages import fail, say
from divconq.io.atomic import write_atomically
from divconq.training.stop_signals import StopSignals, exit_code


def reproduce_command(arguments: ReproduceArguments) -> None:
    """Run ``divconq reproduce``."""
    from divconq import experiments as tables

    if not arguments.tables:
        raise ValueError("no table was named; give a .yaml file such as those in tables/")
    changes = tables.parse_changes(arguments.changes)
    if arguments.backbone is not None:
        changes["backbone"] = arguments.backbone
    for name in ("backbone_weights", "import_file"):
        if (path := getattr(arguments, name)) is not None:
            changes[name] = path.resolve()
    wanted = [tables.load_table(path) for path in arguments.tables]
    if arguments.preset is not None:
        wanted = [table.with_preset(arguments.preset) for table in wanted]
    if arguments.render_only:
        for table in wanted:
            figures = tables.render(table, arguments.out, changes)
            print(json.dumps(figures) if arguments.json else tables.markdown(figures))
        return
    machine = {name: getattr(arguments, name) for name in ("root", "device", "workers", "cache")}
    rows, seeds = (
        tables.select_rows(wanted, tables.parse_names(arguments.rows)),
        tables.parse_seeds(arguments.seeds),
    )
    plans = [
        tables.plan(table, arguments.out, changes, rows=some, seeds=seeds, **machine) for table, some in rows
    ]
    if arguments.dry_run:
        for planned in plans:
            print(tables.plan_text(planned, arguments.out))
        return
    for planned in plans:
        tables.check_losses(planned)
    start, failed = time.monotonic(), list[str]()
    for table, some in rows:
        left = (
            None if arguments.max_minutes is None else arguments.max_minutes - (time.monotonic() - start) / 60
        )
        try:
            with StopSignals() as stop:
                outcome = tables.reproduce(
                    table,
                    arguments.out,
                    changes,
                    rows=some,
                    seeds=seeds,
                    max_minutes=left,
                    keep_runs=arguments.keep_runs,
                    commit=arguments.commit,
                    say=say,
                    stop=stop,
                    **machine,
                )
        except KeyboardInterrupt as stopped:
            fail("stopped; continue from the last checkpoint with the same command", exit_code(stopped))
        print(json.dumps(outcome.figures) if arguments.json else tables.markdown(outcome.figures))
        failed += outcome.failed
    if failed:
        fail(f"{len(failed)} runs failed: {'; '.join(failed)}", 1)


def bench_command(arguments: BenchArguments) -> None:
    """Run ``divconq bench``."""
    from divconq import bench

    file = None if str(arguments.json) == "-" else arguments.json
    if file is not None and not file.parent.is_dir():
        raise ValueError(f"--json: there is no folder {file.parent}; make it, or name another file")
    sizes = bench.default_sizes(
        arguments.device,
        **{
            name: getattr(arguments, name)
            for name in ("backbone", "image_size", "batch", "images", "dim", "epochs", "rounds")
        },
        clustered=arguments.points,
        searched=arguments.points,
        evaluated=arguments.memory_points,
    )
    names = {field.name for field in dataclasses.fields(bench.Setup)} - {"sizes", "parts"}
    setup = bench.Setup(
        sizes, bench.parse_parts(arguments.only), **{name: getattr(arguments, name) for name in names}
    )

    def keep(report: dict[str, Any]) -> None:
        if file is not None:
            write_atomically(file, lambda path: path.write_text(json.dumps(report, indent=1) + "\n"))

    report = bench.measure(setup, say=lambda line: say(f"measuring {line}"), keep=keep)
    print(json.dumps(report) if str(arguments.json) == "-" else bench.text(report))
