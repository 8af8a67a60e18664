"""The run folder: config, log, partitions and masks, checkpoints, the final model."""

import copy
import json
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from divconq.config import Config, from_yaml, to_yaml
from divconq.distributed.collectives import first_only
from divconq.io.atomic import remove_unfinished, write_atomically
from divconq.masks import Masks
from divconq.model import Embedder, load_model, make_model, save_model
from divconq.runs import checkpoints


@dataclass(frozen=True)
class Run:
    """One training run on disk; every file in it is written whole or not at all.

    ``config.yaml``, ``metrics.jsonl`` (one object an epoch), ``divisions/`` (partition and masks at every
    division), ``last.pt`` (to resume from) and ``previous.pt`` (the one before it), ``best.pt`` (the best epoch),
    ``model.safetensors`` (to use).
    """

    folder: Path
    config: Config

    @classmethod
    def create(cls, folder: Path, config: Config) -> "Run":
        """A new run; a folder that exists already is refused."""
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise ValueError(
                f"{folder} exists already; choose another --out, or continue it with --resume {folder}"
            ) from None
        (folder / "divisions").mkdir()
        write_atomically(folder / "config.yaml", lambda path: path.write_text(to_yaml(config)))
        return cls(folder, config)

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """A run that was started before."""
        file = folder / "config.yaml"
        if not file.is_file():
            raise ValueError(
                f"{folder} is not a run folder: it has no config.yaml; name the --out of a training run"
            )
        try:
            return cls(folder, from_yaml(file.read_text()))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{file} cannot be read: {error}") from error

    @first_only
    def log(self, record: dict[str, Any]) -> None:
        """Add one epoch's figures to ``metrics.jsonl``; they are on disk before a checkpoint counts the epoch."""
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def metrics(self) -> list[dict[str, Any]]:
        """What was logged, an object an epoch; a line cut short by a crash is left out."""
        file, records = self.folder / "metrics.jsonl", []
        for line in file.read_text().splitlines() if file.exists() else []:
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return records

    def rewind(self, epochs: int, divisions: int, config: Config) -> None:
        """Forget what was logged after ``epochs`` and divided from epoch ``divisions`` on; go on with ``config``."""
        for folder in (self.folder, self.folder / "divisions"):
            remove_unfinished(folder)
        kept = [json.dumps(record) + "\n" for record in self.metrics() if record["epoch"] <= epochs]
        write_atomically(self.folder / "metrics.jsonl", lambda path: path.write_text("".join(kept)))
        write_atomically(self.folder / "config.yaml", lambda path: path.write_text(to_yaml(config)))
        for file in (self.folder / "divisions").glob("epoch_*.safetensors"):
            if int(file.stem.removeprefix("epoch_")) >= divisions:
                file.unlink()

    @first_only
    def save_division(self, epoch: int, clusters: Tensor, masks: Masks) -> None:
        """Keep a partition and the masks it starts with, for later analysis."""
        from safetensors.torch import save_file

        tensors = {"clusters": clusters.contiguous(), "masks": masks.active().detach().cpu().contiguous()}
        target = self.folder / "divisions" / f"epoch_{epoch:04d}.safetensors"
        write_atomically(target, lambda path: save_file(tensors, path))

    def load(self, which: Literal["last", "best"] = "last") -> dict[str, Any]:
        """A checkpoint's contents, on the CPU; nothing in the file is executed."""
        return checkpoints.load(self.folder, which)

    def resume(self) -> dict[str, Any] | None:
        """The checkpoint to go on from; None, with a warning, if the run was stopped before its first."""
        begun = len(self.metrics()) <= 1  # the first epoch is logged just before its checkpoint
        if begun and not checkpoints.exist(self.folder):
            warnings.warn(
                f"{self.folder} holds no checkpoint yet: it starts from its beginning", stacklevel=2
            )
            return None
        return checkpoints.resume(self.folder)

    @first_only
    def export(self, model: Embedder, mask: Tensor) -> None:
        """Write ``model.safetensors``: the network with the conquered mask folded into its head."""
        final = copy.deepcopy(model).cpu().fold_(mask.detach().cpu())
        settings = self.config.settings()
        settings = {name: settings[name] for name in ("backbone", "dim", "pooling", "image_size", "resize")}
        write_atomically(self.folder / "model.safetensors", lambda path: save_model(final, path, settings))

    def model(self, which: Literal["last", "best"] = "last") -> Embedder:
        """The conquered model after the last or at the best epoch, ready for inference."""
        if which == "last" and (self.folder / "model.safetensors").is_file():
            return load_model(self.folder)
        state = self.load(which)
        model = make_model(
            self.config.model.backbone, self.config.model.dim, pooling=self.config.model.pooling
        )
        config = self.config
        masks = Masks(config.model.dim, config.division.k_max, config.masks.kind, config.masks.conquer)
        model.load_state_dict(state["model"])
        masks.load_state_dict(checkpoints.masks_state(state))
        return model.fold_(masks.conquer().detach()).eval()
