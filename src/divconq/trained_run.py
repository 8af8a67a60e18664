"""A trained run: compute its scores and embed images."""

from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor

from divconq.accel.device import pick_device
from divconq.config import Config
from divconq.data import ImageSet
from divconq.io.atomic import write_atomically
from divconq.model import Embedder, import_file
from divconq.runs.folder import Run
from divconq.training.run_data import open_split, open_test
from divconq.training.scoring import check_test_images, embed_images, search_scores


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
        self.run = run = Run.open(folder)
        if module is not None:
            import_file(Path(module))
        self.config: Config = run.config
        self.model: Embedder = self._open(run, which).to(pick_device(device))

    def scores(
        self,
        data: str | None = None,
        *,
        same_camera: Literal["drop", "keep"] | None = None,
        accept_changes: bool = False,
    ) -> dict[str, float]:
        """Return the scores on the test images of ``data``, by default the data of the run.

        On the data of the run, the test images are those of the run, whatever was added since; images that are
        missing or have changed raise an error, unless ``accept_changes``. ``same_camera`` replaces the setting of the
        run.
        """
        config = self.config.replace(same_camera=same_camera or self.config.evaluation.same_camera)
        dataset = open_test(self.run, data, accept_changes=accept_changes)
        check_test_images(dataset, config.evaluation.ks, config.evaluation.same_camera)
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
        self,
        data: str,
        split: Literal["train", "val", "test", "gallery"] | None = None,
        *,
        accept_changes: bool = False,
    ) -> tuple[Tensor, ImageSet]:
        """Return the unit vectors and the images of one split of a dataset.

        Without ``split``, these are the test images, or all images of a folder without train/ and test/. On the data
        of the run, the split is that of the run.
        """
        images = open_split(self.run, data, split, accept_changes=accept_changes)
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
