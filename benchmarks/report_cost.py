"""Measure a report of a made-up run of any size: seconds of each part and peak memory.

    python benchmarks/report_cost.py                                                        # SOP's size
    python benchmarks/report_cost.py --train 5864 --test 5924 --classes 100 --clusters 4    # CUB's

The run has a log, divisions, a checkpoint, and embeddings from an earlier report: random points around random centres.
The images are grey.
"""

import argparse
import itertools
import resource
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from divconq.analysis import analyse, embedding_cache, read_run, study, write_report
from divconq.config import Config
from divconq.data.dataset import ImageSet, InMemory
from divconq.experiments.origin import code_version, hardware
from divconq.masks import Masks
from divconq.model import make_model
from divconq.runs import checkpoints
from divconq.runs.folder import Run

DIM, EPOCHS, EVERY = 512, 20, 2
SPREAD = 1.9  # of the points of a class around its centre, in each dimension; that of the centres is 1


def made_up(n: int, classes: int, generator: torch.Generator) -> tuple[ImageSet, Tensor]:
    """Return grey images and their embeddings."""
    labels = torch.arange(n) % classes
    f = torch.randn(classes, DIM, generator=generator)[labels]
    f += SPREAD * torch.randn(n, DIM, generator=generator)
    grey = torch.full((n, 8, 8, 3), 128, dtype=torch.uint8)
    names = tuple(f"class {label}" for label in range(classes))
    return ImageSet(InMemory(grey), labels, names, tuple(f"{i}.jpg" for i in range(n))), F.normalize(f)


def made_up_run(folder: Path, images: dict[str, ImageSet], f: dict[str, Tensor], k: int) -> None:
    """Make a run folder as training and an earlier report leave it."""
    generator, n = torch.Generator().manual_seed(1), len(images["train"])
    config = Config.of(data="made up", backbone="small", pretrained=False, dim=DIM, k_max=k, epochs=EPOCHS)
    run, masks = Run.create(folder, config), Masks(DIM, k)
    for epoch in range(EPOCHS):
        if epoch and epoch % EVERY == 0:
            if masks.k < k:
                masks.split_()
            run.save_division(epoch, torch.randint(masks.k, (n,), generator=generator), masks)
        run.log({"epoch": epoch + 1, "k": masks.k, "loss": 1.0, "recall@1": 0.5, "seconds": {"train": 1.0}})
    masks.weight.data = torch.randn(k, DIM, generator=generator) - 0.8
    checkpoints.save(
        folder,
        "last",
        {
            "epoch": EPOCHS,
            "model": make_model("small", DIM).state_dict(),
            "masks": masks.state_dict(),
            "partition": torch.randint(k, (n,), generator=generator),
        },
    )
    record = read_run(folder)
    with patch.object(
        embedding_cache, "embed_images", lambda config, model, some, progress: f[kind(images, some)]
    ):
        embedding_cache.cached_embeddings(record, record.snapshot(), images)


def kind(images: dict[str, ImageSet], some: ImageSet) -> str:
    """Return the name of the split."""
    return next(split for split, known in images.items() if known is some)


def main() -> None:
    """Make a run and its report; print the cost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--train", type=int, default=59_551)
    parser.add_argument("--test", type=int, default=60_502)
    parser.add_argument("--classes", type=int, default=11_316)
    parser.add_argument("--clusters", type=int, default=32)
    arguments = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    made = {
        split: made_up(getattr(arguments, split), arguments.classes, generator) for split in ("train", "test")
    }
    images = {split: some for split, (some, _) in made.items()}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        made_up_run(run, images, {split: f for split, (_, f) in made.items()}, arguments.clusters)
        del made
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        moments: list[tuple[str, float]] = []
        with patch.object(study, "images_of", lambda config: images):
            findings, pictures = analyse(
                [run], device="cpu", say=lambda line: moments.append((line, time.monotonic()))
            )
        moments.append(("figures and page", time.monotonic()))
        size = write_report(findings, pictures, Path(folder, "report")).stat().st_size
        moments.append(("end", time.monotonic()))
    subspaces = findings.chapters["subspaces"]
    for (name, start), (_, end) in itertools.pairwise(moments):
        print(f"{name:30s}{end - start:8.1f} s")
    print(f"{'in all':30s}{moments[-1][1] - moments[0][1]:8.1f} s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"peak memory {peak / 2**20:.2f} GiB, before it {before / 2**20:.2f} GiB; page {size / 2**20:.1f} MiB"
    )
    print(f"R@1 of the points {100 * subspaces.final_recall:.1f}%; missing: {findings.missing}")
    print(
        f"{code_version()}, {hardware('cpu')}, torch {torch.__version__}, {torch.get_num_threads()} threads"
    )


if __name__ == "__main__":
    main()
