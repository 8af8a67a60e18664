"""Compare the cache of decoded images with decoding: how fast it is built, and how fast batches are read.

    python benchmarks/cache.py FOLDER_OF_IMAGES --images 1000     # half a minute on two cores; prints Markdown

All ways take turns on files that the system has in memory; the median counts.
"""

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from divconq.data.batches.views import stored_side
from divconq.data.dataset import ImageSet
from divconq.data.images.cache import cached
from divconq.data.images.decoding import decode
from divconq.data.images.files import ImageFiles
from divconq.data.sources.folder import SUFFIXES


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--size", type=int, default=stored_side(256))
    parser.add_argument("--batch", type=int, default=112)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    files = some_images(given.folder, given.images)
    print(table(measure(files, given), given, len(files)))


def some_images(folder: Path, count: int) -> list[Path]:
    """Return evenly spaced image files, and read them once so that the system has them in memory."""
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES)
    if not files:
        sys.exit(f"{folder} has no images")
    files = files[:: max(1, len(files) // count)][:count]
    for file in files:
        file.read_bytes()
    return files


def measure(files: list[Path], given: argparse.Namespace) -> dict[str, float]:
    """Return the median seconds of each way."""
    pixels = ImageFiles(tuple(files), torch.ones(len(files)), given.size, given.workers)
    images = ImageSet(pixels, torch.zeros(len(files), dtype=torch.int64), ("any",), tuple(map(str, files)))
    drawn = torch.randint(
        len(files), (given.batches, given.batch), generator=torch.Generator().manual_seed(0)
    )
    seconds: dict[str, list[float]] = {}

    def clock(name: str, work: Callable[[], object]) -> None:
        start = time.perf_counter()
        work()
        seconds.setdefault(name, []).append(time.perf_counter() - start)

    def one_round(folder: Path) -> None:
        clock("loop", lambda: [decode(file, given.size) for file in files])
        clock("threads", lambda: [pixels.load(part) for part in torch.arange(len(files)).split(256)])
        clock("build", lambda: cached(images, folder))
        clock("open", lambda: cached(images, folder))
        store = cached(images, folder).store
        clock("decode batches", lambda: [pixels.load(index) for index in drawn])
        clock("read batches", lambda: [store.load(index) for index in drawn])

    for _ in range(given.rounds):
        with tempfile.TemporaryDirectory() as folder:
            one_round(Path(folder))
    return {name: statistics.median(times) for name, times in seconds.items()}


def table(seconds: dict[str, float], given: argparse.Namespace, count: int) -> str:
    decoding = {name: count / seconds[name] for name in ("loop", "threads", "build")}
    reading = {name: given.batches / seconds[name] for name in ("decode batches", "read batches")}
    first, per_batch = decoding["loop"], reading["decode batches"]
    threads, processes = f"{given.workers} threads", f"{given.workers} processes"
    lines = [
        "| decoding every image once | images/s | ratio |",
        "|---|---|---|",
        f"| in a loop | {first:,.0f} | 1.00 |",
        f"| {threads}, nothing kept | {decoding['threads']:,.0f} | {decoding['threads'] / first:.2f} |",
        f"| building the cache, {processes} | {decoding['build']:,.0f} | {decoding['build'] / first:.2f} |",
        "",
        f"| random batches of {given.batch} | batches/s | ratio |",
        "|---|---|---|",
        f"| decoded on the fly, {threads} | {per_batch:,.1f} | 1.0 |",
        f"| read from the cache | {reading['read batches']:,.1f} | {reading['read batches'] / per_batch:.1f} |",
        "",
        f"Opening the finished cache takes {1000 * seconds['open']:.0f} ms. "
        f"{count:,} images, side {given.size}, median of {given.rounds} rounds; "
        f"`python {' '.join(sys.argv)}` on {hardware(torch.device('cpu'))}, torch {torch.__version__}.",
    ]
    return "\n".join(lines)


def hardware(device: torch.device) -> str:
    """Return the name of the GPU, if there is one, and of the cores."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cores = f"{os.cpu_count()} cores of {names[0] if names else platform.processor() or platform.machine()}"
    return f"{torch.cuda.get_device_name(device)} and {cores}" if device.type == "cuda" else cores


if __name__ == "__main__":
    main()
