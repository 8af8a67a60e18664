"""The flags of every command; those of training are the fields of ``Config``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from divconq.config import Config


@dataclass(frozen=True)
class TrainArguments:
    """Train a model; every setting of the preset can be changed by a flag."""

    config: tyro.conf.OmitArgPrefixes[Config]
    out: Path | None = None
    """The run folder to make; runs/NAME when not given."""
    resume: Path | None = None
    """Continue the run in this folder."""


@dataclass(frozen=True)
class EvalArguments:
    """Score a trained run on the images it was tested on, or on others."""

    run: tyro.conf.Positional[Path]
    """The run folder."""
    data: str | None = None
    """Score on this dataset or folder instead of the run's own."""
    checkpoint: Literal["last", "best"] = "last"
    """Which epoch's model."""
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
class DataCheckArguments:
    """Look for what may be wrong with a dataset; exit code 1 if training on it would be wrong."""

    data: tyro.conf.Positional[str]
    """A dataset, a folder of photos, or a .csv or .parquet table."""
    root: Path | None = None
    """The folder of a published benchmark, or the one that holds it."""
    workers: int = 4
    """Threads that read files."""
    json: bool = False
    """Print one JSON object instead of a table."""
