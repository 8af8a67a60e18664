"""Compare training batches: from the cache, augmented on the device, and from torchvision in DataLoader workers.

    python benchmarks/batches.py FOLDER_OF_IMAGES --images 1000     # minutes on two cores; prints Markdown

Both apply the same augmentations with the same probabilities and return batches of floats on the device. They take
turns on files that the system has in memory; the median counts. Workers, compiled code and the cache are ready before
the clock starts.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import torch
from cache import hardware, some_images
from PIL import Image, ImageFilter
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from divconq.accel.device import pick_device
from divconq.data.batches.augmentation import HOLE, HOLES, make_augmentation
from divconq.data.batches.loading import training_batches
from divconq.data.batches.sampler import EpochPlan
from divconq.data.batches.transforms import augment
from divconq.data.batches.views import stored_side
from divconq.data.dataset import ImageSet
from divconq.data.images.cache import cached
from divconq.data.images.files import open_files
from divconq.data.images.placement import move_to_device

SIZE, RESIZE = 224, 256
PRESETS = ("standard", "geom+color")


class Files(Dataset):
    """Image files, augmented by torchvision."""

    def __init__(self, files: list[Path], preset: str) -> None:
        self.files, self.view = files, torchvision_view(preset)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        with Image.open(self.files[index]) as image:
            return self.view(image.convert("RGB"))


def torchvision_view(preset: str) -> Callable[[Image.Image], Tensor]:
    """Return what ``make_augmentation(preset, "random_resized")`` does, in torchvision."""
    bilinear = transforms.InterpolationMode.BILINEAR
    changes = [
        transforms.RandomRotation(45, bilinear),
        transforms.RandomAffine(0, translate=(1 / 16, 1 / 16), interpolation=bilinear),
        blur,
        cut,
        transforms.ColorJitter(brightness=0.2, contrast=0.2),
    ]
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(SIZE),
            transforms.RandomHorizontalFlip(),
            *(transforms.RandomApply([change]) for change in changes if preset == "geom+color"),
            transforms.ToTensor(),
        ]
    )


def blur(image: Image.Image) -> Image.Image:
    return image.filter(ImageFilter.BoxBlur(random.randint(1, 3)))


def cut(image: Image.Image) -> Image.Image:
    for _ in range(random.randint(1, HOLES)):
        width, height = (round(random.uniform(0, HOLE) * SIZE) for _ in range(2))
        x, y = random.randint(0, SIZE - width), random.randint(0, SIZE - height)
        image.paste((0, 0, 0), (x, y, x + width, y + height))
    return image


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=112)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    device, files = pick_device(given.device), some_images(given.folder, given.images)
    with tempfile.TemporaryDirectory() as folder:
        ways = make_ways(files, Path(folder), given, device)
        print(table(measure(ways, given, device), len(files), given, device))


def make_ways(
    files: list[Path], folder: Path, given: argparse.Namespace, device: torch.device
) -> dict[tuple[str, str], Callable[[], Iterable[Tensor]]]:
    """Return, for each preset and way, a function that yields an epoch of batches."""
    (pixels,) = open_files([files], size=stored_side(RESIZE), workers=os.cpu_count())
    images = ImageSet(pixels, torch.zeros(len(files), dtype=torch.int64), ("any",), tuple(map(str, files)))
    (images,) = move_to_device([cached(images, folder)], device)
    drawn = torch.randint(
        len(files), (given.batches, given.batch), generator=torch.Generator().manual_seed(0)
    )
    plan = EpochPlan(torch.zeros(given.batches, dtype=torch.int64), drawn, left_out=0, without_positive=0)
    view = torch.compile(augment, dynamic=False) if device.type == "cuda" else augment

    def ours(preset: str) -> Iterable[Tensor]:
        changes = make_augmentation(preset, "random_resized")
        arguments = {"size": SIZE, "resize": RESIZE, "seed": 0, "device": device, "view": view}
        return (x for x, _, _ in training_batches(images, plan, changes, **arguments))

    def theirs(loader: DataLoader) -> Iterable[Tensor]:
        return (x.to(device, non_blocking=True) for x in loader)

    ways: dict[tuple[str, str], Callable[[], Iterable[Tensor]]] = {}
    for preset in PRESETS:
        loader = DataLoader(
            Files(files, preset),
            batch_sampler=drawn.tolist(),
            num_workers=os.cpu_count(),
            pin_memory=device.type == "cuda",
            persistent_workers=True,
        )
        ways[preset, "torchvision"] = partial(theirs, loader)
        ways[preset, "cache"] = partial(ours, preset)
    return ways


def measure(
    ways: dict[tuple[str, str], Callable[[], Iterable[Tensor]]],
    given: argparse.Namespace,
    device: torch.device,
) -> dict[tuple[str, str], float]:
    """Return the median batches per second of each way, without the first round."""
    seconds: dict[tuple[str, str], list[float]] = {}
    for _ in range(1 + given.rounds):
        for name, batches in ways.items():
            start = time.perf_counter()
            for x in batches():
                assert x.shape == (given.batch, 3, SIZE, SIZE)
                assert x.device.type == device.type
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds.setdefault(name, []).append(time.perf_counter() - start)
    return {name: given.batches / statistics.median(times[1:]) for name, times in seconds.items()}


def table(
    rates: dict[tuple[str, str], float], count: int, given: argparse.Namespace, device: torch.device
) -> str:
    lines = [f"| batches of {given.batch}, per second | " + " | ".join(PRESETS) + " |", "|---|---|---|"]
    for way, called in (
        ("torchvision", f"torchvision, {os.cpu_count()} workers"),
        ("cache", "cache, augmented on the device"),
    ):
        lines.append(f"| {called} | " + " | ".join(f"{rates[preset, way]:,.2f}" for preset in PRESETS) + " |")
    ratios = (rates[preset, "cache"] / rates[preset, "torchvision"] for preset in PRESETS)
    lines += [
        "| ratio | " + " | ".join(f"{ratio:.1f}" for ratio in ratios) + " |",
        "",
        f"{count:,} images, {given.batches} batches, median of {given.rounds} rounds; "
        f"`python {' '.join(sys.argv)}` on {hardware(device)}, torch {torch.__version__}.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
