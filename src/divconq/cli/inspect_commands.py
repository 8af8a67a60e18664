"""The commands for runs and data: eval, embed, analyze, compare, data check, presets."""

import json
from pathlib import Path
from typing import Literal

from divconq.cli.arguments import (
    AnalyzeArguments,
    CompareArguments,
    DataArguments,
    EmbedArguments,
    EvalArguments,
    PresetsArguments,
)
from divconq.cli.messages import say
from divconq.config import to_yaml
from divconq.presets import PRESETS, preset


def eval_command(arguments: EvalArguments) -> None:
    """Run ``divconq eval``."""
    from divconq.cli.tables import score_table
    from divconq.trained_run import TrainedRun

    run = TrainedRun(
        arguments.run, which=arguments.checkpoint, device=arguments.device, module=arguments.import_file
    )
    scores = run.scores(
        arguments.data, same_camera=arguments.same_camera, accept_changes=arguments.accept_changes
    )
    print(json.dumps(scores) if arguments.json else score_table(scores))


def embed_command(arguments: EmbedArguments) -> None:
    """Run ``divconq embed``."""
    if arguments.out.suffix != ".npz":
        raise ValueError(f"--out must end in .npz, got {arguments.out.name!r}")
    if arguments.out.exists():
        raise ValueError(f"{arguments.out} exists already; choose another --out or remove it")
    from divconq.trained_run import TrainedRun, save_embeddings

    run = TrainedRun(
        arguments.run, which=arguments.checkpoint, device=arguments.device, module=arguments.import_file
    )
    embeddings, images = run.embed(arguments.data, arguments.split, accept_changes=arguments.accept_changes)
    save_embeddings(arguments.out, embeddings, images)
    print(f"{arguments.out}: {len(embeddings)} embeddings of {embeddings.shape[1]} dimensions")


def analyze_command(arguments: AnalyzeArguments) -> None:
    """Run ``divconq analyze``."""
    out = arguments.out or arguments.run / "analysis"
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out must be a folder, got the file {out}; name another")
    write_analysis(
        [arguments.run, *arguments.others],
        out,
        which=arguments.checkpoint,
        device=arguments.device,
        module=arguments.import_file,
        accept_changes=arguments.accept_changes,
    )


def write_analysis(
    runs: list[Path],
    out: Path,
    *,
    which: Literal["last", "best"] = "last",
    device: str,
    module: Path | None = None,
    accept_changes: bool = False,
) -> None:
    """Write the report of the first run, compared with the others, and print its path."""
    from divconq.analysis import analyse, write_report

    findings, pictures = analyse(
        runs,
        which=which,
        device=device,
        module=module,
        accept_changes=accept_changes,
        say=lambda line: say(f"analysing: {line}"),
    )
    say("drawing the report")
    print(f"report: {write_report(findings, pictures, out)}")


def compare_command(arguments: CompareArguments) -> None:
    """Run ``divconq compare``."""
    from divconq import experiments as tables
    from divconq.experiments.comparison import compare

    figures = compare(arguments.runs, tables.parse_names(arguments.metric))
    if arguments.format == "json":
        print(json.dumps(figures))
        return
    render = {"text": tables.text, "markdown": tables.markdown, "latex": tables.latex}[arguments.format]
    print(render(figures), end="")


def data_command(arguments: DataArguments) -> None:
    """Run ``divconq data check``."""
    from divconq.accel.device import threads
    from divconq.data import open_dataset
    from divconq.data.check import check_dataset

    workers = threads(arguments.workers)
    dataset = open_dataset(arguments.data, root=arguments.root, workers=workers, keep_broken=True)
    report = check_dataset(dataset, workers=workers)
    print(report.to_json() if arguments.json else report.to_text())
    if report.problems:
        raise SystemExit(1)


def presets_command(arguments: PresetsArguments) -> None:
    """Run ``divconq presets``."""
    if arguments.action == "list":
        print("\n".join(PRESETS))
    elif arguments.preset is None:
        raise ValueError("divconq presets show needs the name of a preset; use: divconq presets show PRESET")
    else:
        print(to_yaml(preset(arguments.preset)), end="")
