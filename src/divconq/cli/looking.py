"""The commands that look at runs and data: eval, embed, analyze, compare, data check, presets."""

import json
from pathlib import Path
from typing import Literal

import tyro

from divconq.cli.arguments import (
    AnalyzeArguments,
    CompareArguments,
    DataCheckArguments,
    EmbedArguments,
    EvalArguments,
)
from divconq.cli.speaking import say
from divconq.config import to_yaml
from divconq.presets import PRESETS, preset


def eval_command(argv: list[str]) -> None:
    """``divconq eval``."""
    parsed = tyro.cli(EvalArguments, args=argv, prog="divconq eval")
    from divconq.cli.tables import score_table
    from divconq.trained_run import TrainedRun

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
    from divconq.trained_run import TrainedRun, save_embeddings

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
    write_analysis(
        [parsed.run, *parsed.others],
        out,
        which=parsed.checkpoint,
        device=parsed.device,
        module=parsed.import_file,
    )


def write_analysis(
    runs: list[Path],
    out: Path,
    *,
    which: Literal["last", "best"] = "last",
    device: str,
    module: Path | None = None,
) -> None:
    """Write the report of the first run, the others beside it, and say where it is."""
    from divconq.analysis import analyse, write_report

    findings, pictures = analyse(
        runs, which=which, device=device, module=module, say=lambda line: say(f"analysing: {line}")
    )
    say("drawing the report")
    print(f"report: {write_report(findings, pictures, out)}")


def compare_command(argv: list[str]) -> None:
    """``divconq compare``."""
    parsed = tyro.cli(CompareArguments, args=argv, prog="divconq compare")
    from divconq import experiments as tables
    from divconq.experiments.compare import compare

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
    from divconq.accel.device import threads
    from divconq.data import open_dataset
    from divconq.data.check import check_dataset, text

    workers = threads(parsed.workers)
    dataset = open_dataset(parsed.data, root=parsed.root, workers=workers, keep_broken=True)
    report = check_dataset(dataset, workers=workers)
    print(report.to_json() if parsed.json else text(report))
    if report.problems:
        raise SystemExit(1)


def presets_command(argv: list[str]) -> None:
    """``divconq presets``."""
    match argv:
        case [] | ["list"]:
            print("\n".join(PRESETS))
        case ["show", name]:
            print(to_yaml(preset(name)), end="")
        case _:
            raise ValueError("use: divconq presets, or: divconq presets show PRESET")
