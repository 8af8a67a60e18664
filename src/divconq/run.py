"""The run folder: config, log, partitions and masks, checkpoints, the final model."""

import copy
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from divconq.config import Config, from_yaml, to_yaml
from divconq.masks import Masks
from divconq.model import Embedder, load_model, make_model, save_model

FORMAT = "divconq checkpoint 1"


@dataclass(frozen=True)
class Run:
    """One training run on disk; every file in it is written whole or not at all.

    ``config.yaml``, ``metrics.jsonl`` (one object an epoch), ``divisions/`` (partition and masks at every
    division), ``last.pt`` (to resume from), ``best.pt`` (the best epoch), ``model.safetensors`` (to use).
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

    def log(self, record: dict[str, Any]) -> None:
        """Add one epoch's figures to ``metrics.jsonl``."""
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """What was logged, an object an epoch; a line cut short by a crash is left out."""
        file, records = self.folder / "metrics.jsonl", []
        for line in file.read_text().splitlines() if file.exists() else []:
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return records

    def rewind(self, epochs: int, config: Config) -> None:
        """Forget what was logged after the first ``epochs``, and go on from there with ``config``."""
        kept = [json.dumps(record) + "\n" for record in self.metrics() if record["epoch"] <= epochs]
        write_atomically(self.folder / "metrics.jsonl", lambda path: path.write_text("".join(kept)))
        write_atomically(self.folder / "config.yaml", lambda path: path.write_text(to_yaml(config)))

    def save_division(self, epoch: int, labels: Tensor, masks: Masks) -> None:
        """Keep a partition and the masks it starts with, for later analysis."""
        from safetensors.torch import save_file

        tensors = {"labels": labels.contiguous(), "masks": masks.active().detach().cpu().contiguous()}
        target = self.folder / "divisions" / f"epoch_{epoch:04d}.safetensors"
        write_atomically(target, lambda path: save_file(tensors, path))

    def save(self, which: Literal["last", "best"], state: dict[str, Any]) -> None:
        """Write a checkpoint."""
        file = self.folder / f"{which}.pt"
        write_atomically(file, lambda path: torch.save({"format": FORMAT, **state}, path))

    def load(self, which: Literal["last", "best"] = "last") -> dict[str, Any]:
        """A checkpoint's contents, on the CPU; nothing in the file is executed."""
        path = self.folder / f"{which}.pt"
        if not path.is_file():
            raise ValueError(
                f"{self.folder} holds no {which}.pt: it stopped before its first epoch; train it anew"
            )
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged or hostile file fails in many ways
            raise ValueError(
                f"{path} is damaged or not a checkpoint ({type(error).__name__}); {_remedy(which)}"
            ) from error
        if not isinstance(state, dict) or state.get("format") != FORMAT:
            raise ValueError(f"{path} is not a checkpoint of this version of divconq; {_remedy(which)}")
        return dict(state)

    def export(self, model: Embedder, mask: Tensor) -> None:
        """Write ``model.safetensors``: the network with the conquered mask folded into its head."""
        final = copy.deepcopy(model).cpu().fold_(mask.detach().cpu())
        settings = {
            name: getattr(self.config, name)
            for name in ("backbone", "dim", "pooling", "image_size", "resize")
        }
        write_atomically(self.folder / "model.safetensors", lambda path: save_model(final, path, settings))

    def model(self, which: Literal["last", "best"] = "last") -> Embedder:
        """The conquered model after the last or at the best epoch, ready for inference."""
        if which == "last" and (self.folder / "model.safetensors").is_file():
            return load_model(self.folder)
        state = self.load(which)
        model = make_model(self.config.backbone, self.config.dim, pooling=self.config.pooling)
        masks = Masks(self.config.dim, self.config.k_max, self.config.masks, self.config.conquer)
        model.load_state_dict(state["model"])
        masks.load_state_dict(state["masks"])
        return model.fold_(masks.conquer().detach()).eval()


class Checkpoints:
    """Writes a run's checkpoints, ``minutes`` apart; the best epoch waits in memory for the next of them.

    So the two files always belong together, and neither is written more often than it is worth.
    """

    def __init__(self, run: Run, minutes: float) -> None:
        self.run, self.minutes, self.due = run, minutes, 0.0
        self.best: dict[str, Any] | None = None

    def offer(self, state: dict[str, Any], *, best: bool, now: bool) -> None:
        """Write the state if it is time, or ``now``; keep it in mind if it is the ``best``."""
        if best:
            self.best = copy.deepcopy({name: part for name, part in state.items() if name != "optimizer"})
        if now or time.monotonic() >= self.due:
            if self.best is not None:
                self.run.save("best", self.best)
                self.best = None
            self.run.save("last", state)
            self.due = time.monotonic() + 60 * self.minutes


def _remedy(which: str) -> str:
    other = "best" if which == "last" else "last"
    return f"copy it again from where it was made, or use {other}.pt"


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a file beside ``path``, make sure it is on disk, then put it in place."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
