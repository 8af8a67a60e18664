"""A trained run: compute its scores and embed images."""

from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor

from divconq.accel.device import pick_device, threads
from divconq.config import Config
from divconq.data import ImageSet, is_dataset
from divconq.data.batches.views import stored_side
from divconq.data.sources.folder import flat_folder
from divconq.io.atomic import write_atomically
from divconq.model import Embedder, import_file
from divconq.runs.folder import Run
from divconq.training.datasets import open_data
from divconq.training.scoring import embed_images, search_scores


class TrainedRun:
    """The conquered model of a run on a device, with the settings of the run.

    ``which`` selects the model of the last or the best epoch. ``module`` is a Python file to execute first, for
    runs that were trained with ``--import``.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        which: Literal["last", "best"] = "last",
        device: str = "auto",
        module: str | Path | None = None,
    ) -> None:
        run = Run.open(folder)
        if module is not None:
            import_file(Path(module))
        self.config: Config = run.config
        self.model: Embedder = self._open(run, which).to(pick_device(device))

    def scores(
        self, data: str | None = None, *, same_camera: Literal["drop", "keep"] | None = None
    ) -> dict[str, float]:
        """Return the scores on the test images of ``data``, by default the data of the run.

        ``same_camera`` replaces the setting of the run.
        """
        config = self.config.replace(
            data=self.config.data.name if data is None else data,
            same_camera=same_camera or self.config.evaluation.same_camera,
        )
        dataset, _ = open_data(config)
        return search_scores(
            config,
            self.model,
            None,
            dataset.test,
            dataset.gallery,
            gallery_draws=dataset.gallery_draws,
            progress="embedding",
        )

    def embed(
        self, data: str, split: Literal["train", "test", "gallery"] = "test"
    ) -> tuple[Tensor, ImageSet]:
        """Return the unit vectors and the images of one split of a dataset, or of all images in a folder."""
        if is_dataset(data):
            config = self.config.replace(data=data, val_classes=0, same_camera="keep")
            dataset, _ = open_data(config)
            images = getattr(dataset, split)
            if images is None:
                raise ValueError(f"{data!r} has no gallery; use --split train or --split test")
        else:
            images = flat_folder(
                Path(data),
                size=stored_side(self.config.data.resize),
                workers=threads(self.config.runtime.workers),
            )
        x = embed_images(self.config, self.model, images, progress="embedding").cpu()
        if bad := int((~x.isfinite()).any(1).sum()):
            raise ValueError(
                f"the model gives embeddings that are not finite for {bad} of {len(x)} images, so its training "
                "diverged; use --checkpoint best, or train again with a lower --lr"
            )
        return x, images

    def _open(self, run: Run, which: Literal["last", "best"]) -> Embedder:
        try:
            return run.model(which)
        except ValueError as error:
            if run.config.model.import_file is not None and "unknown backbone" in str(error):
                name = run.config.model.import_file.name
                raise ValueError(f"{run.folder} was trained with --import {name}; give it again") from error
            raise


def save_embeddings(path: Path, embeddings: Tensor, images: ImageSet) -> None:
    """Write an .npz file with ``embeddings``, ``labels``, ``names`` (of the labels) and ``paths``."""

    def write(target: Path) -> None:
        with target.open("wb") as file:
            np.savez_compressed(
                file,
                embeddings=embeddings.numpy(),
                labels=images.labels.numpy(),
                names=np.array(images.names),
                paths=np.array(images.paths),
            )

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, write)
