"""The flags of every command. Those of ``train`` are the settings of `Config` and a few more."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, UseAppendAction, arg

from divconq.config import Config
from divconq.config.nested import SECTIONS
from divconq.config.sections import Dimensions, Minutes, Pixels, Positive, Section, Workers
from divconq.io.yaml_values import at_least, at_most

Device = Literal["auto", "cpu", "cuda"]
Checkpoint = Literal["last", "best"]
Points = Annotated[int, at_least(2), at_most(10**8)]


@dataclass(frozen=True)
class TrainArguments(Config):
    """Train a model: divconq train PRESET, divconq train --data FOLDER, or divconq train --resume RUN."""

    preset: Positional[str | None] = None
    """The settings to start from; divconq presets lists them. Every flag changes one setting."""
    out: Path | None = None
    """The run folder to create; runs/NAME by default."""
    resume: Path | None = None
    """Continue the run in this folder."""
    accept_changes: bool = False
    """With --resume: continue although a changed setting, or changed images, change the result."""
    analyze: bool = False
    """At the end also write the report of divconq analyze to RUN/analysis."""
    tensorboard: bool = False
    """Also write the curves to RUN/tensorboard; needs the package tensorboard."""
    wandb: bool = False
    """Also log the curves to Weights & Biases; needs the package wandb."""

    @classmethod
    def starting_from(cls, config: Config) -> "TrainArguments":
        """Return arguments with the settings of a config."""
        return cls(**{name: getattr(config, name) for name in SECTIONS})

    @property
    def config(self) -> Config:
        """Return the settings without the other arguments."""
        return Config(**{name: getattr(self, name) for name in SECTIONS})


@dataclass(frozen=True)
class EvalArguments(Section):
    """Score a trained run on its own test images or on another dataset."""

    run: Positional[Path]
    """The run folder."""
    data: str | None = None
    """Dataset or folder to score on; the run's own by default."""
    checkpoint: Checkpoint = "last"
    """Epoch of the model."""
    same_camera: Literal["drop", "keep"] | None = None
    """Matches of the same identity by the same camera: drop or keep them; as in training by default."""
    accept_changes: bool = False
    """Score although test images have changed since the training, or were trained on."""
    device: Device = "auto"
    """Device to compute on; auto takes the GPU if there is one."""
    json: bool = False
    """Print one JSON object instead of a table."""
    import_file: Annotated[Path | None, arg(name="import")] = None
    """Run this Python file first; needed if the run was trained with one."""


@dataclass(frozen=True)
class EmbedArguments(Section):
    """Write the embeddings of images to an .npz file, with their labels, class names and paths."""

    run: Positional[Path]
    """The run folder."""
    data: str
    """A dataset, or any folder of images."""
    out: Path
    """The .npz file to write."""
    split: Literal["train", "val", "test", "gallery"] | None = None
    """Part of the dataset, as the run has it; by default test, or all images of a folder without train/ and test/."""
    accept_changes: bool = False
    """Embed although images of the split have changed since the training."""
    checkpoint: Checkpoint = "last"
    """Epoch of the model."""
    device: Device = "auto"
    """Device to compute on; auto takes the GPU if there is one."""
    import_file: Annotated[Path | None, arg(name="import")] = None
    """Run this Python file first; needed if the run was trained with one."""


@dataclass(frozen=True)
class AnalyzeArguments(Section):
    """Write a report about a run, as an HTML page with figures; further runs are compared with it."""

    run: Positional[Path]
    """The run folder."""
    others: Positional[tuple[Path, ...]] = ()
    """Runs to compare with."""
    out: Path | None = None
    """Folder for report.html, analysis.json and figures/; RUN/analysis by default."""
    checkpoint: Checkpoint = "last"
    """Epoch of the model."""
    accept_changes: bool = False
    """Analyse although test images have changed since the training."""
    device: Device = "auto"
    """Device to compute on; auto takes the GPU if there is one."""
    import_file: Annotated[Path | None, arg(name="import")] = None
    """Run this Python file first; needed if a run was trained with one."""


@dataclass(frozen=True)
class CompareArguments(Section):
    """Print a table of runs: one row for each set of settings, mean and standard deviation over the seeds."""

    runs: Positional[tuple[Path, ...]]
    """Run folders, result files of divconq reproduce, or folders of these."""
    metric: str | None = None
    """Show only these scores, for example recall@1,train_recall@1,nmi."""
    format: Literal["text", "markdown", "latex", "json"] = "text"
    """Output format."""


@dataclass(frozen=True)
class DataArguments(Section):
    """Check a dataset for problems: divconq data check NAME_OR_FOLDER. The exit code is 1 if there are any."""

    action: Positional[Literal["check"]]
    """What to do."""
    data: Positional[str]
    """A dataset, a folder of photos, or a .csv or .parquet table."""
    root: Path | None = None
    """The folder of a published benchmark, or the one that holds it."""
    workers: Workers = 0
    """Threads that read files; 0 takes one for each processor core."""
    json: bool = False
    """Print one JSON object instead of a table."""


@dataclass(frozen=True)
class ReproduceArguments(Section):
    """Run tables of experiments and render the results. The same command continues after a stop."""

    tables: Positional[tuple[Path, ...]]
    """The tables, .yaml files such as those in tables/."""
    out: Path = Path("results")
    """Folder for finished/ (one line per run in TABLE.jsonl), runs/ (unfinished runs) and TABLE.md, .tex and .json."""
    root: Path | None = None
    """Folder of a benchmark on disk."""
    device: Device = "auto"
    """Device to train on; auto takes the GPU if there is one."""
    workers: Workers = 0
    """Threads that decode images; 0 takes one for each processor core."""
    cache: bool = True
    """Decode the images once into a file and read them from there."""
    preset: str | None = None
    """Preset to start from instead of the table's, for example cub-paper."""
    backbone: str | None = None
    """Backbone to train instead of the table's."""
    backbone_weights: Path | None = None
    """Start from this .safetensors file."""
    import_file: Annotated[Path | None, arg(name="import")] = None
    """Run this Python file first; it may register a backbone or a loss."""
    changes: Annotated[UseAppendAction[tuple[str, ...]], arg(name="set", metavar="NAME=VALUE")] = ()
    """Change a setting in all rows, for example epochs=30; may be repeated. Each result records it."""
    rows: str | None = None
    """Run only the rows of these names, for example margin,fixed."""
    seeds: str | None = None
    """Run only these seeds, for example 0,1."""
    max_minutes: Minutes | None = None
    """Start no run that is likely to end later than this, by the mean time of the finished ones."""
    commit: str | None = None
    """Version of the code to record where git is not available."""
    keep_runs: bool = False
    """Keep the folders and models of finished runs."""
    dry_run: bool = False
    """Only list the runs and whether they are finished."""
    render_only: bool = False
    """Only render the existing results; needs neither data nor weights."""
    json: bool = False
    """Print one JSON object for each table instead of Markdown."""


@dataclass(frozen=True)
class BenchArguments(Section):
    """Measure the speed and memory of training, clustering and search. Many defaults depend on the device."""

    only: str | None = None
    """Measure only these parts of step, embed, kmeans, knn, nmi and memory, for example step,kmeans."""
    data: str = "demo"
    """Images to train on: demo (as JPEG files), a benchmark such as cub, or a folder."""
    root: Path | None = None
    """Folder of a benchmark on disk."""
    images: Positive | None = None
    """Number of images to train on, the first ones; all of them on a GPU."""
    backbone: str | None = None
    """Any timm model, or small, with random weights."""
    import_file: Annotated[Path | None, arg(name="import")] = None
    """Run this Python file first; it may register a backbone."""
    image_size: Pixels | None = None
    """Side of the square image that the network sees, in pixels."""
    batch: Annotated[int, at_least(2), at_most(10**6)] | None = None
    """Images in a batch."""
    augmentation: Literal[
        "none", "crop", "standard", "geom", "geom+color", "color-heavy", "geom-authors", "geom+color-authors"
    ] = "geom+color"
    """Random changes to training images."""
    crop: Literal["random", "random_resized"] = "random_resized"
    """Training crop: of a fixed scale, or of a random area and shape."""
    epochs: Annotated[int, at_least(1), at_most(10**6)] | None = None
    """Epochs of training in each round."""
    rounds: Annotated[int, at_least(1), at_most(10**6)] | None = None
    """Number of timed rounds; the median is reported."""
    dim: Dimensions | None = None
    """Dimensions of the embedding."""
    points: Points | None = None
    """Number of points to cluster and to search."""
    memory_points: tuple[Points, ...] | None = None
    """Numbers of points for the memory of an evaluation, for example 10000 50000."""
    others: bool = True
    """Also measure a plain loop, and faiss, scikit-learn and pytorch-metric-learning if installed."""
    device: Device = "auto"
    """Device to compute on; auto takes the GPU if there is one."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """bf16 runs the network in mixed precision; auto does so on a GPU that supports it."""
    compile: Literal["auto", "off"] = "auto"
    """On a GPU: compile the step and capture it as one CUDA graph."""
    json: Path | None = None
    """File to write the report to, as JSON; - prints it instead of the tables."""


@dataclass(frozen=True)
class PresetsArguments(Section):
    """List the presets, or print one: divconq presets show PRESET."""

    action: Positional[Literal["list", "show"]] = "list"
    """What to do."""
    preset: Positional[str | None] = None
    """The preset to show."""
