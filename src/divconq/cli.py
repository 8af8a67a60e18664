"""The command line: thin, each command reads its flags and calls the library."""

import dataclasses
import json
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NoReturn, TextIO

import tyro

from divconq import __version__
from divconq.arguments import (
    AnalyzeArguments,
    BenchArguments,
    CompareArguments,
    DataCheckArguments,
    EmbedArguments,
    EvalArguments,
    ReproduceArguments,
    TrainArguments,
    flag_value,
    take_free_flags,
)
from divconq.checks import did_you_mean
from divconq.config import MAY_CHANGE, Config, differences, from_yaml, to_yaml
from divconq.presets import PRESETS, preset
from divconq.stopping import Stopped, StopSignals
from divconq.writing import FULL, write_atomically

USAGE = """divconq {version}: train image-retrieval embeddings by divide and conquer

  divconq train PRESET [--out DIR] [flags]    train; the presets are {presets}
  divconq train --data FOLDER [flags]         train on your own photos, a folder of class folders
  divconq train --resume RUN                  continue a run that was stopped
  divconq eval RUN                            score a trained run
  divconq embed RUN --data FOLDER --out FILE  embed images into an .npz file
  divconq analyze RUN [RUN ...] [--out DIR]   write a report: what the run has learned, others beside it
  divconq compare RUN [RUN ...]               print a table of runs, mean and deviation over seeds
  divconq data check NAME_OR_FOLDER           look for what is wrong with a dataset
  divconq reproduce TABLE.yaml [--out DIR]    run a table of experiments, rows by seeds, and render it
  divconq bench [--only step,knn] [flags]     measure how fast this machine trains, clusters and searches
  divconq presets [show PRESET]               list the presets, or print one

Every command explains its flags with --help, for example: divconq train cub --help
"""

COMPILERS = ("torch._inductor", "torch._dynamo", "torch.autograd.graph")  # their warnings are for developers


def main(argv: list[str] | None = None) -> None:
    """Run one command; bad input is one sentence and exit code 2."""
    arguments = sys.argv[1:] if argv is None else argv
    warnings.showwarning = _show_warning
    for compiler in COMPILERS:
        warnings.filterwarnings("ignore", module=re.escape(compiler))
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE.format(version=__version__, presets=", ".join(PRESETS)), end="")
        return
    if arguments[0] == "--version":
        print(f"divconq {__version__}")
        return
    try:
        command(arguments[0])(arguments[1:])
    except BrokenPipeError:
        raise SystemExit(0) from None
    except ConnectionError as error:  # with other processes: each says what it knows
        _fail(str(error), 1, all_say=True)
    except (ValueError, OSError) as error:
        if os.environ.get("DIVCONQ_TRACEBACK"):
            raise
        _fail(str(error), 2)
    except FloatingPointError as error:
        _fail(str(error), 1)
    except KeyboardInterrupt:
        _fail("stopped", 130)


def command(name: str) -> Callable[[list[str]], None]:
    """The function behind a command's name."""
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS)
        raise ValueError(f"unknown command {name!r}: choose one of {', '.join(COMMANDS)}{hint}")
    if name != "train" and _processes() > 1:
        raise ValueError(f"divconq {name} runs in one process, got {_processes()}; start it without torchrun")
    return COMMANDS[name]


def train_command(argv: list[str]) -> None:
    """``divconq train``."""
    named = argv[0] if argv and not argv[0].startswith("-") else None
    argv, loss_args = take_free_flags(argv if named is None else argv[1:], "--loss.")
    argv, miner_args = take_free_flags(argv, "--miner.")
    resume = flag_value(argv, "--resume")
    if resume is not None:
        start = from_yaml(_read(Path(resume) / "config.yaml"))
        if start.import_file is not None and flag_value(argv, "--import") is None:
            raise ValueError(
                f"the run was begun with --import {start.import_file}; give it again: a run folder does not make code "
                "run by itself"
            )
    else:
        start = preset(named or ("photos" if flag_value(argv, "--data") else "demo"))
    parsed = tyro.cli(TrainArguments, args=argv, prog="divconq train", default=TrainArguments(start))
    config = dataclasses.replace(
        parsed.config,
        data=_absolute(parsed.config.data),
        loss_args={**(start.loss_args if parsed.config.loss == start.loss else {}), **loss_args},
        miner_args={**(start.miner_args if parsed.config.miner == start.miner else {}), **miner_args},
        **{
            name: path.resolve()
            for name in ("root", "backbone_weights", "import_file")
            if (path := getattr(parsed.config, name)) is not None
        },
    )
    if parsed.resume is not None:
        if named is not None or parsed.out is not None:
            raise ValueError("--resume continues a run as it was set up; give no preset and no --out with it")
        _name_changes(start, config, accept=parsed.accept_changes)
    elif parsed.accept_changes:
        raise ValueError("--accept-changes is for a run that is continued; give --resume RUN with it")
    elif parsed.out is None and _may_restart():
        raise ValueError(
            "torchrun --max-restarts must find the run that it starts again; name it with --out DIR"
        )
    from divconq.device import pick_device
    from divconq.distributed import joined, on_first
    from divconq.loggers import LOGGERS

    with joined(pick_device(config.device)):
        out = parsed.resume or parsed.out or on_first(_free_folder, named or Path(config.data).stem)
        again = parsed.resume is not None or on_first(_started_again, out, config)
        _train(config, out, resume=again, loggers=[name for name in LOGGERS if getattr(parsed, name)])
    if parsed.analyze and _speaks():
        _analyze([out], out / "analysis", device=config.device)


def _train(config: Config, out: Path, *, resume: bool, loggers: list[str]) -> None:
    from divconq import train as training
    from divconq.report import summary

    _say(f"training on {config.data} into {out}")
    try:
        with StopSignals() as stop:
            records = training.train(config, out, resume=resume, stop=stop, loggers=loggers)
    except KeyboardInterrupt as stopped:
        way = _how_to_go_on(out, config, loggers)
        _fail(f"stopped; {way}", stopped.code if isinstance(stopped, Stopped) else 130)
    except OSError as error:
        if error.errno not in FULL:
            raise
        _fail(
            f"the disk is full ({error}); what was saved is kept: free space, then "
            f"{_how_to_go_on(out, config, loggers)}",
            1,
        )
    if _speaks():
        print(summary(records, "val_recall@1" if config.val_classes else "recall@1", out))


def eval_command(argv: list[str]) -> None:
    """``divconq eval``."""
    parsed = tyro.cli(EvalArguments, args=argv, prog="divconq eval")
    from divconq.inference import TrainedRun
    from divconq.report import score_table

    run = TrainedRun(parsed.run, which=parsed.checkpoint, device=parsed.device, module=parsed.import_file)
    scores = run.scores(parsed.data, same_camera=parsed.same_camera)
    print(json.dumps(scores) if parsed.json else score_table(scores))


def embed_command(argv: list[str]) -> None:
    """``divconq embed``."""
    parsed = tyro.cli(EmbedArguments, args=argv, prog="divconq embed")
    if parsed.out.suffix != ".npz":
        raise ValueError(f"--out must end in .npz, got {parsed.out.name!r}")
    if parsed.out.exists():
        raise ValueError(f"{parsed.out} exists already; choose another --out or remove it")
    from divconq.inference import TrainedRun, save_embeddings

    run = TrainedRun(parsed.run, which=parsed.checkpoint, device=parsed.device, module=parsed.import_file)
    embeddings, images = run.embed(parsed.data, parsed.split)
    save_embeddings(parsed.out, embeddings, images)
    print(f"{parsed.out}: {len(embeddings)} embeddings of {embeddings.shape[1]} dimensions")


def analyze_command(argv: list[str]) -> None:
    """``divconq analyze``."""
    parsed = tyro.cli(AnalyzeArguments, args=argv, prog="divconq analyze")
    out = parsed.out or parsed.run / "analysis"
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out must be a folder, got the file {out}; name another")
    _analyze(
        [parsed.run, *parsed.others],
        out,
        which=parsed.checkpoint,
        device=parsed.device,
        module=parsed.import_file,
    )


def _analyze(
    runs: list[Path],
    out: Path,
    *,
    which: Literal["last", "best"] = "last",
    device: str,
    module: Path | None = None,
) -> None:
    from divconq.analysis.output import write_report
    from divconq.analysis.study import analyse

    findings, pictures = analyse(
        runs, which=which, device=device, module=module, say=lambda line: _say(f"analysing: {line}")
    )
    _say("drawing the report")
    print(f"report: {write_report(findings, pictures, out)}")


def compare_command(argv: list[str]) -> None:
    """``divconq compare``."""
    parsed = tyro.cli(CompareArguments, args=argv, prog="divconq compare")
    from divconq import reproduce as tables
    from divconq.compare import compare

    figures = compare(parsed.runs, tables.parse_names(parsed.metric))
    if parsed.format == "json":
        print(json.dumps(figures))
        return
    render = {"text": tables.text, "markdown": tables.markdown, "latex": tables.latex}[parsed.format]
    print(render(figures), end="")


def data_command(argv: list[str]) -> None:
    """``divconq data check``."""
    if argv[:1] != ["check"]:
        raise ValueError("use: divconq data check NAME_OR_FOLDER [--root DIR] [--json]")
    parsed = tyro.cli(DataCheckArguments, args=argv[1:], prog="divconq data check")
    from divconq.data import open_dataset
    from divconq.data.check import check_dataset, text
    from divconq.device import threads

    workers = threads(parsed.workers)
    dataset = open_dataset(parsed.data, root=parsed.root, workers=workers, keep_broken=True)
    report = check_dataset(dataset, workers=workers)
    print(report.to_json() if parsed.json else text(report))
    if report.problems:
        raise SystemExit(1)


def reproduce_command(argv: list[str]) -> None:
    """``divconq reproduce``."""
    parsed = tyro.cli(ReproduceArguments, args=argv, prog="divconq reproduce")
    from divconq import reproduce as tables

    table = tables.load_table(parsed.table)
    changes = tables.parse_changes(parsed.changes)
    if parsed.backbone is not None:
        changes["backbone"] = parsed.backbone
    for name in ("backbone_weights", "import_file"):
        if (path := getattr(parsed, name)) is not None:
            changes[name] = path.resolve()
    if parsed.render_only:
        figures = tables.render(table, parsed.out, changes)
        print(json.dumps(figures) if parsed.json else tables.markdown(figures))
        return
    machine = {name: getattr(parsed, name) for name in ("root", "device", "workers", "cache")}
    rows, seeds = tables.parse_names(parsed.rows), tables.parse_seeds(parsed.seeds)
    if parsed.dry_run:
        planned = tables.plan(table, parsed.out, changes, rows=rows, seeds=seeds, **machine)
        print(tables.plan_text(planned, parsed.out))
        return
    try:
        outcome = tables.reproduce(
            table,
            parsed.out,
            changes,
            rows=rows,
            seeds=seeds,
            max_minutes=parsed.max_minutes,
            keep_runs=parsed.keep_runs,
            commit=parsed.commit,
            say=lambda line: print(line, file=sys.stderr, flush=True),
            **machine,
        )
    except KeyboardInterrupt:
        _fail("stopped; continue from the last checkpoint with the same command", 130)
    print(json.dumps(outcome.figures) if parsed.json else tables.markdown(outcome.figures))
    if outcome.failed:
        _fail(f"{len(outcome.failed)} runs failed: {'; '.join(outcome.failed)}", 1)


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
    names = ("data", "root", "augmentation", "crop", "device", "precision", "compile", "others")
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


def presets_command(argv: list[str]) -> None:
    """``divconq presets``."""
    match argv:
        case [] | ["list"]:
            print("\n".join(PRESETS))
        case ["show", name]:
            print(to_yaml(preset(name)), end="")
        case _:
            raise ValueError("use: divconq presets, or: divconq presets show PRESET")


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "train": train_command,
    "eval": eval_command,
    "embed": embed_command,
    "analyze": analyze_command,
    "compare": compare_command,
    "data": data_command,
    "reproduce": reproduce_command,
    "bench": bench_command,
    "presets": presets_command,
}


def _name_changes(before: Config, now: Config, *, accept: bool) -> None:
    """Say what a resumed run does otherwise than before; refuse what changes its result, unless accepted."""
    changes = {name: f"{name} from {old} to {new}" for name, (old, new) in differences(before, now).items()}
    refused = [change for name, change in changes.items() if name not in MAY_CHANGE]
    if refused and not accept:
        raise ValueError(
            f"a resumed run keeps its settings, but these would change its result: {'; '.join(refused)}; leave them "
            "out, start a new run, or go on with --accept-changes"
        )
    for name, change in changes.items():
        _say(f"changed: {change} ({MAY_CHANGE.get(name, 'accepted: the result changes')})")


def _may_restart() -> bool:
    """Whether torchrun starts this command again if a process dies."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0


def _started_again(out: Path, config: Config) -> bool:
    """Whether torchrun may have started this command before, and the run it made is not at its end."""
    if not _may_restart() or not (out / "config.yaml").is_file() or (out / "model.safetensors").exists():
        return False
    _name_changes(from_yaml(_read(out / "config.yaml")), config, accept=False)
    return True


def _how_to_go_on(out: Path, config: Config, loggers: list[str]) -> str:
    if (out / "config.yaml").is_file():
        words = ["divconq", "train", "--resume", str(out), *(f"--{name}" for name in loggers)]
        if config.import_file is not None:
            words += ["--import", str(config.import_file)]
        return f"continue with: {shlex.join(words)}"
    return "start again: nothing was written"


def _free_folder(name: str) -> Path:
    name = name.replace(":", "-")  # no colon in a file name on Windows
    folder, number = Path("runs") / name, 2
    while folder.exists():
        folder, number = Path("runs") / f"{name}-{number}", number + 1
    return folder


def _absolute(data: str) -> str:
    return str(Path(data).resolve()) if data and data not in PRESETS and Path(data).exists() else data


def _read(path: Path) -> str:
    if not path.is_file():
        raise ValueError(
            f"{path.parent} is not a run folder: it has no {path.name}; name the --out of a training run"
        )
    return path.read_text()


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if _speaks("LOCAL_RANK"):
        print(f"divconq: warning: {message}", file=sys.stderr)


def _fail(message: str, code: int, *, all_say: bool = False) -> NoReturn:
    if all_say or _speaks("LOCAL_RANK"):
        print(f"divconq: error: {message}", file=sys.stderr)
    raise SystemExit(code)


def _say(text: str) -> None:
    if _speaks():
        print(text, file=sys.stderr)


def _speaks(number: str = "RANK") -> bool:
    """Whether this process talks: the first of all that torchrun has started, or of those of each machine."""
    return _processes() == 1 or os.environ.get(number) == "0"


def _processes() -> int:
    """How many torchrun has started; without it there is this one."""
    return int(os.environ.get("WORLD_SIZE", "1"))
