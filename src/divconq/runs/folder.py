"""The run folder: config, log, divisions, checkpoints and the final model."""

import copy
import json
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from divconq.checks import first_line
from divconq.config import Config, read_config, to_yaml
from divconq.data.images.transform import Transform
from divconq.data.split_record import SplitRecord
from divconq.distributed import first_only
from divconq.io.atomic import remove_unfinished, write_atomically
from divconq.masks import Masks
from divconq.model import Embedder, make_model
from divconq.runs import checkpoints
from divconq.runs.checkpoint_types import check_complete, load_weights
from divconq.runs.checkpoints import REMEDY
from divconq.runs.exported import load_model, save_model
from divconq.runs.log_records import parse_record


@dataclass(frozen=True)
class Run:
    """One training run on disk. Every file is written completely or not at all.

    The folder holds ``config.yaml``, ``split.json`` (the images of every split), ``metrics.jsonl`` (one object per
    epoch), ``divisions/`` (clusters and masks at every division), ``last.pt`` (the checkpoint to resume from),
    ``previous.pt`` (the one before it), ``best.pt`` (the best epoch) and ``model.safetensors`` (the final model).
    """

    folder: Path
    config: Config

    @staticmethod
    def check_new(folder: Path) -> None:
        """Raise ValueError if a run cannot be created in the folder."""
        if folder.exists() or folder.is_symlink():
            raise ValueError(
                f"{folder} exists already; choose another --out, or continue it with --resume {folder}"
            )
        parent = next(parent for parent in folder.absolute().parents if parent.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            raise ValueError(f"{folder} cannot be created in {parent}; choose an --out where you may write")

    @classmethod
    def create(cls, folder: Path, config: Config) -> "Run":
        """Create a new run. Raise an error if the folder exists."""
        cls.check_new(folder)
        folder.mkdir(parents=True)
        (folder / "divisions").mkdir()
        write_atomically(folder / "config.yaml", lambda path: path.write_text(to_yaml(config)))
        return cls(folder, config)

    @classmethod
    def open(cls, folder: str | Path) -> "Run":
        """Return an existing run."""
        folder = Path(folder)
        return cls(folder, read_config(folder))

    def save_split(self, record: SplitRecord | None) -> None:
        """Write ``split.json``: path, class and content of every image."""
        if record is not None:
            write_atomically(self.folder / "split.json", lambda path: path.write_text(record.to_json()))

    def split(self) -> SplitRecord | None:
        """Return the record of the images of the run; None for a run of an older version, which has none."""
        file = self.folder / "split.json"
        if not file.exists():
            return None
        try:
            return SplitRecord.from_json(file.read_text())
        except (ValueError, OSError) as error:
            raise ValueError(
                f"{file} cannot be read: {error}; copy it again from its source, or train a new run"
            ) from error

    def training_labels(self) -> str | None:
        """Return the ``label_fingerprint`` of the training images, as the last checkpoint has it; None without one."""
        return checkpoints.load(self.folder).get("data") if checkpoints.exist(self.folder) else None

    @first_only
    def log(self, record: dict[str, Any]) -> None:
        """Append the record of one epoch to ``metrics.jsonl`` and wait until it is on disk."""
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def metrics(self) -> list[dict[str, Any]]:
        """Return the log, one record per epoch, with current key names.

        An incomplete last line, left by a crash, is ignored. A damaged line before it raises ValueError, and so does
        a line that is not the record of a later epoch.
        """
        file, records = self.folder / "metrics.jsonl", list[dict[str, Any]]()
        text = file.read_bytes().decode("utf-8-sig", errors="replace") if file.exists() else ""
        lines = text.rstrip("\n").split("\n") if text else []
        for number, line in enumerate(lines, 1):
            try:
                records.append(parse_record(line, after=records[-1]["epoch"] if records else 0))
            except json.JSONDecodeError:
                if number == len(lines):
                    break
                raise ValueError(
                    f"line {number} of {file} is damaged; remove it, or copy the file again from its source"
                ) from None
            except ValueError as error:
                raise ValueError(
                    f"line {number} of {file} is not the record of an epoch: {error}; remove it, or copy the file "
                    "again from its source"
                ) from error
        return records

    def rewind(self, epochs: int, divisions: int, config: Config) -> None:
        """Remove log records after ``epochs`` and divisions from epoch ``divisions`` on; store the new ``config``."""
        for folder in (self.folder, self.folder / "divisions"):
            remove_unfinished(folder)
        kept = [json.dumps(record) + "\n" for record in self.metrics() if record["epoch"] <= epochs]
        write_atomically(self.folder / "metrics.jsonl", lambda path: path.write_text("".join(kept)))
        write_atomically(self.folder / "config.yaml", lambda path: path.write_text(to_yaml(config)))
        for file in (self.folder / "divisions").glob("epoch_*.safetensors"):
            epoch = file.stem.removeprefix("epoch_")
            if epoch.isdecimal() and int(epoch) >= divisions:
                file.unlink()

    @first_only
    def save_division(self, epoch: int, clusters: Tensor, masks: Masks) -> None:
        """Save the cluster of each image and the masks at the start of a division, for later analysis."""
        from safetensors.torch import save_file

        tensors = {"clusters": clusters.contiguous(), "masks": masks.active().detach().cpu().contiguous()}
        target = self.folder / "divisions" / f"epoch_{epoch:04d}.safetensors"
        target.parent.mkdir(exist_ok=True)  # copies of a run folder may lack it while it is empty
        write_atomically(target, lambda path: save_file(tensors, path))

    def load(self, which: Literal["last", "best"] = "last") -> dict[str, Any]:
        """Return the contents of a checkpoint, on the CPU. Nothing in the file is executed."""
        state = checkpoints.load(self.folder, which)
        try:
            check_complete(state)
        except ValueError as error:
            raise ValueError(
                f"the {which} checkpoint in {self.folder} is damaged ({error}); {REMEDY}"
            ) from error
        return checkpoints.with_resting_mask(state, self.config.masks.conquer)

    def resume(self) -> dict[str, Any] | None:
        """Return the checkpoint to resume from. If none was written yet, warn and return None."""
        at_start = len(self.metrics()) <= 1  # the first epoch is logged just before its checkpoint
        if at_start and not checkpoints.exist(self.folder):
            warnings.warn(
                f"{self.folder} holds no checkpoint yet; training starts from the beginning", stacklevel=2
            )
            return None
        return checkpoints.with_resting_mask(checkpoints.resume(self.folder), self.config.masks.conquer)

    @first_only
    def export(self, model: Embedder, mask: Tensor) -> None:
        """Write ``model.safetensors``: the network with the conquered mask folded into its head."""
        final = copy.deepcopy(model).cpu().fold_(mask.detach().cpu())
        settings = self.config.settings()
        names = ("backbone", "dim", "pooling", "head", "image_size", "resize", "decode_size")
        settings = {name: settings[name] for name in names} | {"components": self.config.components}
        write_atomically(self.folder / "model.safetensors", lambda path: save_model(final, path, settings))

    def model(self, which: Literal["last", "best"] = "last") -> Embedder:
        """Return the conquered model of the last or the best epoch, ready for inference."""
        if which == "last" and (self.folder / "model.safetensors").is_file():
            return load_model(self.folder)
        return conquered_model(self.config, self.load(which))


def stored_masks(config: Config, state: dict[str, Any]) -> Masks:
    """Return the masks of a checkpoint of any format."""
    settings = config.masks
    masks = Masks(config.model.dim, config.max_clusters, settings.kind, settings.conquer, settings.activation)
    load_weights(masks, checkpoints.masks_state(state))
    return masks


def network_of(config: Config) -> Embedder:
    """Return the network of a run without its weights."""
    settings = config.model
    return make_model(
        settings.backbone,
        settings.dim,
        pooling=settings.pooling,
        head=settings.head,
        components=config.components,
    )


def conquered_model(config: Config, state: dict[str, Any]) -> Embedder:
    """Return the conquered model of a checkpoint of any format, ready for inference."""
    model = network_of(config)
    try:
        load_weights(model, checkpoints.network_state(state))
        masks = stored_masks(config, state)
    except (ValueError, RuntimeError) as error:
        raise ValueError(
            f"the checkpoint does not fit config.yaml ({first_line(error)}); restore the config.yaml of the training"
        ) from error
    model.transform = Transform(config.data.image_size, config.data.resize, config.data.decode_size)
    return model.fold_(masks.conquer().detach()).eval()
