"""Read a run folder for analysis, and list its missing parts. Does not import the training loop."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from divconq.config import Config
from divconq.division.partition import check_clusters
from divconq.model import Embedder
from divconq.runs.checkpoints import clusters_state, network_state
from divconq.runs.folder import Run, network_of, stored_masks

Which: TypeAlias = Literal["last", "best"]

SCORE, TRAIN_SCORE = "recall@1", "train_recall@1"


@dataclass(frozen=True)
class Division:
    """A division of the training images after ``epoch``: the cluster of each image, and the masks at that time."""

    epoch: int
    clusters: Int64[Tensor, " n"]
    masks: Float[Tensor, "k d"]

    @property
    def k(self) -> int:
        """Return the number of clusters, including empty ones."""
        return len(self.masks)


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint: the network f without masks, the masks m_1 .. m_K, and the cluster of each training image."""

    epoch: int
    network: Embedder
    masks: Float[Tensor, "k d"]
    clusters: Int64[Tensor, " n"]


@dataclass(frozen=True)
class RunRecord:
    """A run as stored on disk: settings, one log record for each epoch, and the divisions in order.

    ``missing`` lists, in sentences, what the folder lacks. Settings are read only here and in
    ``embedding_cache``.
    """

    folder: Path
    config: Config
    metrics: tuple[dict[str, Any], ...]
    divisions: tuple[Division, ...]
    missing: tuple[str, ...]

    @property
    def dataset(self) -> str:
        """Return the name of the dataset, without its path."""
        return Path(self.config.data.name).name

    @property
    def has_masks(self) -> bool:
        """Return whether the run trains subspaces."""
        return self.config.masks.kind != "none"

    @property
    def is_baseline(self) -> bool:
        """Return whether the run has only one embedding space: no division or no masks."""
        return self.config.max_clusters == 1 or not self.has_masks

    @property
    def drops_same_camera(self) -> bool:
        """Return whether the scores leave out images from the camera of the query."""
        return self.config.evaluation.same_camera == "drop"

    @property
    def imported(self) -> str | None:
        """Return the name of the file that the training imported, or None."""
        return None if self.config.model.import_file is None else self.config.model.import_file.name

    def final_mask(self, masks: Float[Tensor, "k d"]) -> Float[Tensor, " d"]:
        """Return the mask of the final space: the sum of the masks, or ones if the run conquers without masks."""
        return torch.ones_like(masks[0]) if self.config.masks.conquer == "plain" else masks.sum(0)

    def curve(self, name: str) -> tuple[list[int], list[float]]:
        """Return the epochs at which a figure was logged, and its values."""
        return curve(self.metrics, name)

    def snapshot(self, which: Which = "last") -> Snapshot:
        """Return the checkpoint of the last or best epoch.

        Raises ValueError if there is no checkpoint or it does not fit the settings.
        """
        config, state = self.config, Run(self.folder, self.config).load(which)
        model = network_of(config)
        try:
            model.load_state_dict(network_state(state))
            masks = stored_masks(config, state).active().detach()
        except (KeyError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"{self.folder / which}.pt does not fit config.yaml ({str(error).splitlines()[0]}); "
                "restore the config.yaml of the training"
            ) from error
        return Snapshot(int(state["epoch"]), model.eval(), masks, clusters_state(state))


def read_run(folder: Path) -> RunRecord:
    """Return the log and the divisions of a run.

    A run that stopped early, has K = 1, or has no masks or divisions is read as far as possible. Raises ValueError if
    the folder is not a run folder.
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
    """Return the epochs at which a figure was logged, and its values; empty lists if it was never logged.

    >>> curve([{"epoch": 1, "loss": 3.0}, {"epoch": 2, "loss": 2.0, "recall@1": 0.5}], "recall@1")
    ([2], [0.5])
    """
    logged = [(int(record["epoch"]), float(record[name])) for record in metrics if name in record]
    return [epoch for epoch, _ in logged], [value for _, value in logged]


def generalisation(
    metrics: Sequence[Mapping[str, Any]], train: str = TRAIN_SCORE, test: str = SCORE
) -> list[tuple[int, float, float]]:
    """Return epoch, training score and test score of every epoch that has both.

    See the paper's section 4.3, figure "Train Recall@1 vs Test Recall@1 for every training epoch".

    >>> generalisation([{"epoch": 1, "train_recall@1": 0.9, "recall@1": 0.5}, {"epoch": 2, "recall@1": 0.6}])
    [(1, 0.9, 0.5)]
    """
    both = [record for record in metrics if train in record and test in record]
    return [(int(record["epoch"]), float(record[train]), float(record[test])) for record in both]


def _read_divisions(folder: Path) -> tuple[tuple[Division, ...], list[str]]:
    """Return the divisions in order of epoch, and a sentence for each damaged file."""
    divisions, damaged = [], []
    for file in sorted(folder.glob("epoch_*.safetensors")):
        try:
            divisions.append(_read_division(file))
        except Exception as error:  # a damaged file can raise many kinds of errors
            reason = str(error) or type(error).__name__
            damaged.append(f"divisions/{file.name} is left out, because it cannot be read ({reason}).")
    divisions.sort(key=lambda division: division.epoch)
    return tuple(divisions), damaged


def _read_division(file: Path) -> Division:
    from safetensors.torch import load_file

    tensors = load_file(file)
    clusters, masks = tensors["clusters" if "clusters" in tensors else "labels"], tensors["masks"]
    if clusters.dtype != torch.int64 or clusters.ndim != 1 or masks.ndim != 2:
        raise ValueError(
            f"clusters must be one row of integers and masks a matrix, got {clusters.dtype} of shape "
            f"{tuple(clusters.shape)} and shape {tuple(masks.shape)}"
        )
    check_clusters("clusters", clusters, len(masks))
    return Division(int(file.stem.removeprefix("epoch_")), clusters, masks)


def _missing_epochs(config: Config, metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    if not metrics:
        return ["The log is empty: the run stopped during its first epoch."]
    sentences = []
    if int(metrics[-1]["epoch"]) < config.optimisation.epochs:
        sentences.append(
            f"The run stopped early, after {metrics[-1]['epoch']} of {config.optimisation.epochs} epochs."
        )
    if not curve(metrics, SCORE)[0]:
        sentences.append(f"The log has no {SCORE}: no epoch was evaluated.")
    elif not generalisation(metrics):
        sentences.append(f"The log has no {TRAIN_SCORE}, so training and test scores cannot be compared.")
    return sentences


def _missing_divisions(
    config: Config, metrics: Sequence[Mapping[str, Any]], divisions: Sequence[Division]
) -> list[str]:
    sentences = []
    if config.model.head == "clml":
        sentences.append("There are no divisions: the head clml replaces them.")
    elif config.division.k_max == 1:
        sentences.append("There are no divisions: k_max is 1, so all images are in one cluster.")
    elif not divisions:
        done = metrics[-1]["epoch"] if metrics else 0
        sentences.append(
            f"There are no divisions: the run has {done} epochs and divides every {config.division.divide_every}."
        )
    elif divisions[-1].k < config.division.k_max:
        sentences.append(f"K reached {divisions[-1].k} of k_max = {config.division.k_max}.")
    if config.masks.kind == "none":
        sentences.append("There are no subspaces: the run was trained with masks none.")
    if len({len(division.clusters) for division in divisions}) > 1:
        sentences.append(
            "The divisions have different numbers of images, so they cannot be compared with each other."
        )
    return sentences


def _missing_files(folder: Path) -> list[str]:
    effects = {
        "last.pt": "the network cannot be analysed",
        "best.pt": "the best epoch cannot be analysed",
        "model.safetensors": "there is no final model",
    }
    if (folder / "previous.pt").is_file():  # it replaces last.pt
        del effects["last.pt"]
    return [
        f"There is no {name}: {effect}." for name, effect in effects.items() if not (folder / name).is_file()
    ]
