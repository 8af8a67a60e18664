"""The flags of every command; those of training are the fields of ``Config``."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from divconq.config import Config
from divconq.io.yaml_values import read_yaml


@dataclass(frozen=True)
class TrainArguments:
    """Train a model; every setting of the preset can be changed by a flag."""

    config: tyro.conf.OmitArgPrefixes[Config]
    out: Path | None = None
    """The run folder to make; runs/NAME when not given."""
    resume: Path | None = None
    """Continue the run in this folder."""
    accept_changes: bool = False
    """With --resume: go on although settings were changed that change the result."""
    analyze: bool = False
    """In the end also write the report of divconq analyze, into RUN/analysis."""
    tensorboard: bool = False
    """Also write the curves to RUN/tensorboard; needs the package tensorboard."""
    wandb: bool = False
    """Also log the curves to Weights & Biases; needs the package wandb."""


@dataclass(frozen=True)
class EvalArguments:
    """Score a trained run on the images it was tested on, or on others."""

    run: tyro.conf.Positional[Path]
    """The run folder."""
    data: str | None = None
    """Score on this dataset or folder instead of the run's own."""
    checkpoint: Literal["last", "best"] = "last"
    """Which epoch's model."""
    same_camera: Literal["drop", "keep"] | None = None
    """What to do with matches of the same identity by the same camera; as in training when not given."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute."""
    json: bool = False
    """Print one JSON object instead of a table."""
    import_file: Annotated[Path | None, tyro.conf.arg(name="import")] = None
    """Run this Python file first, if the run was trained with one."""


@dataclass(frozen=True)
class EmbedArguments:
    """Embed images with a trained run into an .npz file: embeddings, labels, names, paths."""

    run: tyro.conf.Positional[Path]
    """The run folder."""
    data: str
    """A dataset, or any folder of images."""
    out: Path
    """The .npz file to write."""
    split: Literal["train", "test", "gallery"] = "test"
    """Which part of a dataset."""
    checkpoint: Literal["last", "best"] = "last"
    """Which epoch's model."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute."""
    import_file: Annotated[Path | None, tyro.conf.arg(name="import")] = None
    """Run this Python file first, if the run was trained with one."""


@dataclass(frozen=True)
class AnalyzeArguments:
    """Write what a run has learned as a report: numbers, figures, and one HTML page; others beside it."""

    run: tyro.conf.Positional[Path]
    """The run folder to look at."""
    others: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Runs to compare it with."""
    out: Path | None = None
    """Where report.html, analysis.json and figures/ go; RUN/analysis when not given."""
    checkpoint: Literal["last", "best"] = "last"
    """Which epoch's model."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute."""
    import_file: Annotated[Path | None, tyro.conf.arg(name="import")] = None
    """Run this Python file first, if a run was trained with one."""


@dataclass(frozen=True)
class CompareArguments:
    """Print a table of runs: a row for each set of settings, mean and deviation over its seeds."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders; also the small JSON files that divconq reproduce keeps, and folders of them."""
    metric: str | None = None
    """Show only these scores, for example recall@1,train_recall@1,nmi."""
    format: Literal["text", "markdown", "latex", "json"] = "text"
    """How to print it."""


@dataclass(frozen=True)
class DataCheckArguments:
    """Look for what may be wrong with a dataset; exit code 1 if training on it would be wrong."""

    data: tyro.conf.Positional[str]
    """A dataset, a folder of photos, or a .csv or .parquet table."""
    root: Path | None = None
    """The folder of a published benchmark, or the one that holds it."""
    workers: int = 0
    """Threads that read files; 0 takes one for each processor core."""
    json: bool = False
    """Print one JSON object instead of a table."""


@dataclass(frozen=True)
class ReproduceArguments:
    """Run what tables of experiments lack, then render them; the same command continues what was stopped."""

    tables: tyro.conf.Positional[tuple[Path, ...]]
    """The tables, .yaml files such as those in tables/, one after the other."""
    out: Path = Path("results")
    """Where finished/ (a small JSON of each run), runs/ (those not finished) and TABLE.md, .tex and .json go."""
    root: Path | None = None
    """Where a benchmark lies on disk."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto takes the GPU if there is one."""
    workers: int = 0
    """How many decode images at a time; 0 takes one for each processor core."""
    cache: bool = True
    """Decode images once into a file and read them from there."""
    preset: str | None = None
    """Start from this preset instead of the table's, for example cub-paper."""
    backbone: str | None = None
    """Train this backbone instead of the table's."""
    backbone_weights: Path | None = None
    """Start from this .safetensors file."""
    import_file: Annotated[Path | None, tyro.conf.arg(name="import")] = None
    """Run this Python file first, so that a backbone or loss it registers can be named."""
    changes: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(name="set", metavar="NAME=VALUE")
    ] = ()
    """Change a setting in all rows, for example epochs=30; may be repeated, and is recorded with each result."""
    rows: str | None = None
    """Run only these rows, for example margin,fixed; of several tables, each runs those that it has."""
    seeds: str | None = None
    """Run only these seeds, for example 0,1."""
    max_minutes: float | None = None
    """Start no run that would end later than this, by the mean time of those that are done; for all tables together."""
    commit: str | None = None
    """What to record as the version of the code where git cannot be asked."""
    keep_runs: bool = False
    """Keep the run folders, with their models, of runs that are done."""
    dry_run: bool = False
    """Only list the runs, and which of them are done."""
    render_only: bool = False
    """Run nothing: render the results that are there. The data and the weights are not needed."""
    json: bool = False
    """Print JSON instead of Markdown, an object a table."""


@dataclass(frozen=True)
class BenchArguments:
    """Measure training, clustering, search and memory on this machine; what is not given depends on the device."""

    only: str | None = None
    """Measure only these, for example step,kmeans; there are step, embed, kmeans, knn, nmi and memory."""
    data: str = "demo"
    """Images to train on: demo (written to JPEG files first), a benchmark such as cub, or a folder."""
    root: Path | None = None
    """Where a benchmark lies on disk."""
    images: int | None = None
    """Train on the first so many images only; on a GPU on all."""
    backbone: str | None = None
    """Any timm model, or small; its weights are random."""
    import_file: Annotated[Path | None, tyro.conf.arg(name="import")] = None
    """Run this Python file first, so that a backbone it registers can be named."""
    image_size: int | None = None
    """Side of the square the network sees."""
    batch: int | None = None
    """Images in a batch."""
    augmentation: Literal["none", "standard", "geom", "geom+color", "color-heavy"] = "geom+color"
    """Random changes to training images."""
    crop: Literal["random", "random_resized"] = "random_resized"
    """A crop of fixed scale, or one of random area and shape."""
    epochs: int | None = None
    """Epochs of training that are timed at once, in every round."""
    rounds: int | None = None
    """How often training is timed; the median counts."""
    dim: int | None = None
    """Dimensions of the embedding."""
    points: int | None = None
    """Points to cluster and to search."""
    memory_points: tuple[int, ...] | None = None
    """The numbers of points whose evaluation's memory is measured, for example 10000 50000."""
    others: bool = True
    """Also measure the plain loop, and faiss, scikit-learn and pytorch-metric-learning where they are installed."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto takes the GPU if there is one."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """bf16 runs the network in mixed precision; auto does so on a GPU that has it."""
    compile: Literal["auto", "off"] = "auto"
    """On a GPU: compile the step and capture it as one CUDA graph."""
    json: Path | None = None
    """Also write the report to this file; - prints it, as one JSON object, instead of the tables."""


def take_free_flags(argv: list[str], prefix: str) -> tuple[list[str], dict[str, Any]]:
    """Split off flags such as ``--loss.alpha 2`` whose names only the loss knows.

    >>> take_free_flags(["--loss", "margin", "--loss.alpha", "1e-1", "--seed=3"], "--loss.")
    (['--loss', 'margin', '--seed=3'], {'alpha': 0.1})
    """
    rest: list[str] = []
    free: dict[str, Any] = {}
    words = iter(argv)
    for word in words:
        if not word.startswith(prefix):
            rest.append(word)
            continue
        name, equals, value = word.removeprefix(prefix).partition("=")
        if not equals:
            value = next(words, "")
        if not name or not value or value.startswith("--"):
            raise ValueError(f"{word} needs a value, for example {prefix}{name or 'alpha'} 0.1")
        free[name.replace("-", "_")] = _value(value, prefix + name)
    return rest, free


def _value(text: str, flag: str) -> object:
    """What a flag's text means: YAML, and numbers such as 1e-3 that YAML takes for words."""
    if "e" in text.lower():
        with suppress(ValueError):
            return float(text)
    return read_yaml(text, flag)


def flag_value(argv: list[str], flag: str) -> str | None:
    """The value a flag is given, before the rest is parsed.

    >>> flag_value(["--resume", "runs/demo"], "--resume")
    'runs/demo'
    """
    for position, word in enumerate(argv):
        if word == flag:
            return argv[position + 1] if position + 1 < len(argv) else None
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
    return None
