"""What a run folder has to offer for analysis, and what is missing in it. Never imports the training loop."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from divconq.config import Config
from divconq.division.partition import check_clusters
from divconq.model import Embedder, make_model
from divconq.runs.checkpoints import clusters_state, masks_state
from divconq.runs.folder import Run

SCORE, TRAIN_SCORE = "recall@1", "train_recall@1"


@dataclass(frozen=True)
class Division:
    """The partition of the training images that was made before ``epoch``, and the masks as they were then."""

    epoch: int
    labels: Int64[Tensor, " n"]
    masks: Float[Tensor, "k d"]

    @property
    def k(self) -> int:
        """How many clusters there are, with those that are empty."""
        return len(self.masks)


@dataclass(frozen=True)
class Snapshot:
    """A run after ``epoch`` epochs: f without masks, relu(s_1) .. relu(s_K), the cluster of each training image."""

    epoch: int
    network: Embedder
    masks: Float[Tensor, "k d"]
    clusters: Int64[Tensor, " n"]


@dataclass(frozen=True)
class RunRecord:
    """A run as it lies on disk: its settings, an object for each epoch, its divisions in order.

    ``missing`` says in whole sentences what is not there.
    """

    folder: Path
    config: Config
    metrics: tuple[dict[str, Any], ...]
    divisions: tuple[Division, ...]
    missing: tuple[str, ...]

    def curve(self, name: str) -> tuple[list[int], list[float]]:
        """The epochs at which a figure was logged, and the figure; empty lists if it never was."""
        return curve(self.metrics, name)

    def snapshot(self, which: Literal["last", "best"] = "last") -> Snapshot:
        """The run as it was at the end of its last or best epoch, its masks of ones without subspaces.

        ValueError says why, if there is no checkpoint or it cannot be read.
        """
        state = Run(self.folder, self.config).load(which)
        model = make_model(
            self.config.model.backbone, self.config.model.dim, pooling=self.config.model.pooling
        )
        try:
            model.load_state_dict(state["model"])
            saved = masks_state(state)
            masks: Tensor = saved["weight"][: int(saved["count"])].relu()
        except (KeyError, RuntimeError) as error:
            raise ValueError(
                f"{self.folder / which}.pt does not fit config.yaml ({str(error).splitlines()[0]}); "
                "put back the settings it was trained with"
            ) from error
        return Snapshot(int(state["epoch"]), model.eval(), masks, clusters_state(state))


def read_run(folder: Path) -> RunRecord:
    """Read what a run has logged and divided; ValueError if the folder is not that of a run.

    A run that was stopped, has K = 1, or has no masks or divisions is read as far as it goes.
    """
    run = Run.open(folder)
    metrics = tuple(record for record in run.metrics() if isinstance(record, dict) and "epoch" in record)
    divisions, damaged = _read_divisions(folder / "divisions")
    missing = (
        *_missing_epochs(run.config, metrics),
        *_missing_divisions(run.config, metrics, divisions),
        *damaged,
        *_missing_files(folder),
    )
    return RunRecord(folder, run.config, metrics, divisions, missing)


def curve(metrics: Sequence[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """The epochs at which a figure was logged, and the figure.

    >>> curve([{"epoch": 1, "loss": 3.0}, {"epoch": 2, "loss": 2.0, "recall@1": 0.5}], "recall@1")
    ([2], [0.5])
    """
    logged = [(int(record["epoch"]), float(record[name])) for record in metrics if name in record]
    return [epoch for epoch, _ in logged], [value for _, value in logged]


def generalisation(
    metrics: Sequence[Mapping[str, Any]], train: str = TRAIN_SCORE, test: str = SCORE
) -> list[tuple[int, float, float]]:
    """Epoch, score on the training images and score on the test images, wherever both were logged.

    The paper's section 4.3: figure "Train Recall@1 vs Test Recall@1 for every training epoch".

    >>> generalisation([{"epoch": 1, "train_recall@1": 0.9, "recall@1": 0.5}, {"epoch": 2, "recall@1": 0.6}])
    [(1, 0.9, 0.5)]
    """
    both = [record for record in metrics if train in record and test in record]
    return [(int(record["epoch"]), float(record[train]), float(record[test])) for record in both]


def _read_divisions(folder: Path) -> tuple[tuple[Division, ...], list[str]]:
    """The divisions by epoch, and a sentence for each file that is none."""
    divisions, damaged = [], []
    for file in sorted(folder.glob("epoch_*.safetensors")):
        try:
            divisions.append(_read_division(file))
        except Exception as error:  # a damaged file fails in many ways
            damaged.append(
                f"divisions/{file.name} is left out: it cannot be read ({str(error) or type(error).__name__})."
            )
    divisions.sort(key=lambda division: division.epoch)
    return tuple(divisions), damaged


def _read_division(file: Path) -> Division:
    from safetensors.torch import load_file

    tensors = load_file(file)
    labels, masks = tensors["clusters" if "clusters" in tensors else "labels"], tensors["masks"]
    if labels.dtype != torch.int64 or labels.ndim != 1 or masks.ndim != 2:
        raise ValueError(f"labels {tuple(labels.shape)} and masks {tuple(masks.shape)} are of other shapes")
    check_clusters("labels", labels, len(masks))
    return Division(int(file.stem.removeprefix("epoch_")), labels, masks)


def _missing_epochs(config: Config, metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    if not metrics:
        return ["No epoch was logged: the run stopped before the end of its first."]
    sentences = []
    if int(metrics[-1]["epoch"]) < config.optimisation.epochs:
        sentences.append(
            f"The run stopped early: {metrics[-1]['epoch']} of {config.optimisation.epochs} epochs are there."
        )
    if not curve(metrics, SCORE)[0]:
        sentences.append(f"No {SCORE} was logged: no epoch has been evaluated yet.")
    elif not generalisation(metrics):
        sentences.append(
            f"No {TRAIN_SCORE} was logged, so training and test cannot be compared epoch by epoch."
        )
    return sentences


def _missing_divisions(
    config: Config, metrics: Sequence[Mapping[str, Any]], divisions: Sequence[Division]
) -> list[str]:
    sentences = []
    if config.division.k_max == 1:
        sentences.append("There are no divisions: k_max is 1, so all images are one cluster.")
    elif not divisions:
        done = metrics[-1]["epoch"] if metrics else 0
        sentences.append(
            f"There are no divisions: {done} epochs were made, and the data is divided every "
            f"{config.division.divide_every}."
        )
    elif divisions[-1].k < config.division.k_max:
        sentences.append(f"K reached {divisions[-1].k} of k_max = {config.division.k_max}.")
    if config.masks.kind == "none":
        sentences.append("There are no subspaces: the run was trained with masks none.")
    if len({len(division.labels) for division in divisions}) > 1:
        sentences.append("The divisions are of different numbers of images; they cannot be compared.")
    return sentences


def _missing_files(folder: Path) -> list[str]:
    absent = {
        "last.pt": "the subspaces cannot be looked at one by one",
        "best.pt": "the best epoch cannot be looked at",
        "model.safetensors": "there is no final model",
    }
    if (folder / "previous.pt").is_file():  # it stands in for a last.pt
        del absent["last.pt"]
    return [f"There is no {name}: {so}." for name, so in absent.items() if not (folder / name).is_file()]
