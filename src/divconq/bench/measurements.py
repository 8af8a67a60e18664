"""Run all measurements, one after the other, and return one report."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch

from divconq.accel.device import cpus, pick_device, uses_bf16
from divconq.accel.graphs import first_line
from divconq.bench.algorithms import compare_kmeans, compare_nmi, compare_search
from divconq.bench.memory import evaluation_memory
from divconq.bench.photos import files_of, first, image_files, in_memory
from divconq.bench.steps import embedding_rates, training_rates
from divconq.bench.torchvision_loop import plain_rates
from divconq.checks import did_you_mean
from divconq.config import Config
from divconq.data.batches.augmentation import make_augmentation
from divconq.experiments.origin import code_version, hardware
from divconq.model import make_model
from divconq.training.datasets import open_data
from divconq.training.setup import Job, prepare

FORMAT = "divconq bench 1"
PARTS = ("step", "embed", "kmeans", "knn", "nmi", "memory")
CLUSTERS = 4  # in training
K, ITERATIONS = 32, 100  # of k-means
PER_CLASS = 60_502 / 11_316  # images per class in the test set of Stanford Online Products


@dataclass(frozen=True)
class Sizes:
    """Sizes of the measurements."""

    backbone: str
    image_size: int
    batch: int
    images: int | None
    dim: int
    epochs: int  # per round
    rounds: int
    batches: int  # of the plain loop per round
    clustered: int  # points in k-means
    searched: int  # points in search and NMI
    evaluated: tuple[int, ...]  # numbers of points for the memory of an evaluation


GPU = Sizes(
    "resnet50.tv_in1k", 224, 112, None, 512, 2, 5, 30, 100_000, 60_502, (10_000, 50_000, 100_000, 500_000)
)
CPU = Sizes("small", 48, 32, 320, 128, 1, 3, 5, 10_000, 10_000, (2_500, 5_000, 10_000))


@dataclass(frozen=True)
class Setup:
    """The setup of a measurement: sizes, parts, images and device."""

    sizes: Sizes
    parts: tuple[str, ...] = PARTS
    data: str = "demo"
    root: Path | None = None
    import_file: Path | None = None
    augmentation: Literal[
        "none", "crop", "standard", "geom", "geom+color", "color-heavy", "geom-authors", "geom+color-authors"
    ] = "geom+color"
    crop: Literal["random", "random_resized"] = "random_resized"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    compile: Literal["auto", "off"] = "auto"
    others: bool = True


def default_sizes(device: str, **changes: Any) -> Sizes:  # noqa: ANN401
    """Return the sizes for a device, with some changed; None keeps a default.

    >>> default_sizes("cpu", batch=8, dim=None).batch
    8
    """
    sizes = GPU if pick_device(device).type == "cuda" else CPU
    return replace(sizes, **{name: value for name, value in changes.items() if value is not None})


def parse_parts(text: str | None) -> tuple[str, ...]:
    """Return the parts in the value of ``--only``, in a fixed order.

    >>> parse_parts("nmi,step")
    ('step', 'nmi')
    """
    named = PARTS if text is None else tuple(name.strip() for name in text.split(",") if name.strip())
    for name in named:
        if name not in PARTS:
            raise ValueError(
                f"--only must name some of {', '.join(PARTS)}, got {name!r}{did_you_mean(name, PARTS)}"
            )
    if not named:
        raise ValueError(f"--only must name some of {', '.join(PARTS)}, got none")
    return tuple(name for name in PARTS if name in named)


def measure(
    setup: Setup,
    say: Callable[[str], object] = lambda line: None,
    keep: Callable[[dict[str, Any]], object] = lambda report: None,
) -> dict[str, Any]:
    """Measure the parts of the setup and return the report, which consists of JSON values.

    ``say`` is called with the name of the next part, and ``keep`` with the report after each part.
    """
    device = pick_device(setup.device)
    report: dict[str, Any] = {
        "format": FORMAT,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware(device.type),
        "cpus": cpus(),
        "torch": torch.__version__,
        "code": code_version(),
        "device": device.type,
        "others": setup.others,
    }
    if {"step", "embed"} & set(setup.parts):
        measure_training(setup, device, report, say, keep)
    for part, (title, work) in ALGORITHMS.items():
        if part in setup.parts:
            say(title)
            report[part] = work(setup, device)
            keep(report)
    if "memory" in setup.parts:
        say("memory of an evaluation")
        dim, report["memory"] = setup.sizes.dim, []
        for n in setup.sizes.evaluated:
            report["memory"].append({"points": n, "dim": dim, "bytes": evaluation_memory(n, dim, device)})
            keep(report)
    return report


def measure_kmeans(setup: Setup, device: torch.device) -> dict[str, Any]:
    """Return sizes, seconds and costs of k-means."""
    n, dim = setup.sizes.clustered, setup.sizes.dim
    ways = compare_kmeans(n, dim, k=K, iterations=ITERATIONS, device=device, others=setup.others)
    return {"points": n, "dim": dim, "k": K, "iterations": ITERATIONS, "ways": ways}


def measure_search(setup: Setup, device: torch.device) -> dict[str, Any]:
    """Return sizes, seconds and scores of an exact search."""
    sizes = _searched(setup)
    return {**sizes, "ways": compare_search(*sizes.values(), device=device, others=setup.others)}


def measure_nmi(setup: Setup, device: torch.device) -> dict[str, Any]:
    """Return sizes, seconds and scores of NMI."""
    sizes = _searched(setup)
    return {**sizes, "ways": compare_nmi(*sizes.values(), device=device, others=setup.others)}


def _searched(setup: Setup) -> dict[str, int]:
    n = setup.sizes.searched
    return {"points": n, "dim": setup.sizes.dim, "classes": max(2, round(n / PER_CLASS))}


ALGORITHMS = {
    "kmeans": ("k-means", measure_kmeans),
    "knn": ("search", measure_search),
    "nmi": ("NMI", measure_nmi),
}


def measure_training(
    setup: Setup,
    device: torch.device,
    report: dict[str, Any],
    say: Callable[[str], object],
    keep: Callable[[dict[str, Any]], object],
) -> None:
    """Add training, end to end and in parts, and the embedding pass to the report."""
    say(f"images of {setup.data}")
    with image_files(setup.data, setup.sizes.images, cpus()) as data:
        config = config_of(setup, data)
        job = prepare(config)
        job = replace(job, train=in_memory(job.train, setup.sizes.images))
        report["images"] = {
            "data": Path(setup.data).name,
            "count": len(job.train),
            "classes": len(job.train.names),
        }
        if "step" in setup.parts:
            say("the bare step and our training")
            training, rates = measure_steps(setup, job)
            report["training"] = {**training, **ratios(rates["bare"], rates["ours"], [])}
            keep(report)
            if setup.others:
                say("the plain loop")
                plain = plain_loop(setup, config, device)
                found = ratios(rates["bare"], rates["ours"], plain.get("rounds", []))
                report["training"] = {**training, "plain": plain, **found}
                keep(report)
        if "embed" in setup.parts:
            say("the embedding pass")
            report["embedding"] = rate(embedding_rates(job, rounds=setup.sizes.rounds))
            keep(report)


def measure_steps(setup: Setup, job: Job) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Return the training section of the report, and the images per second of each round."""
    sizes = setup.sizes
    rates, way = training_rates(job, epochs=sizes.epochs, rounds=sizes.rounds)
    training = {
        "backbone": sizes.backbone,
        "image_size": sizes.image_size,
        "batch": sizes.batch,
        "dim": sizes.dim,
        "augmentation": setup.augmentation,
        "crop": setup.crop,
        "clusters": job.dc.masks.k,
        "precision": "bf16" if uses_bf16(setup.precision, job.device) else "fp32",
        "way": way,
        "steps": -(-len(job.train) // sizes.batch) * sizes.epochs,
        **{name: rate(values) for name, values in rates.items()},
    }
    return training, rates


def config_of(setup: Setup, data: str) -> Config:
    """Return the config of the measured run: margin loss, learned masks, four clusters, random weights."""
    return Config.of(
        data=data,
        root=setup.root,
        singletons="drop",
        image_size=setup.sizes.image_size,
        resize=setup.sizes.image_size * 8 // 7,
        augmentation=setup.augmentation,
        crop=setup.crop,
        workers=cpus(),
        backbone=setup.sizes.backbone,
        import_file=setup.import_file,
        pretrained=False,
        dim=setup.sizes.dim,
        k_max=CLUSTERS,
        batch=setup.sizes.batch,
        device=setup.device,
        precision=setup.precision,
        compile=setup.compile,
        ks=(1,),
    )


def plain_loop(setup: Setup, config: Config, device: torch.device) -> dict[str, Any]:
    """Return the rate of the plain loop on the same files, or its ``error``."""
    images = first(open_data(config)[0].train, setup.sizes.images)
    try:
        return rate(
            plain_rates(
                make_model(config.model.backbone, config.model.dim, dropout=config.model.dropout),
                files_of(images.store),
                images.labels,
                make_augmentation(config.data.augmentation, config.data.crop, config.data.crop_scale),
                size=config.data.image_size,
                resize=config.data.resize,
                batch=config.optimisation.batch,
                device=device,
                batches=setup.sizes.batches,
                rounds=min(setup.sizes.rounds, 3),
            )
        )
    except (ImportError, RuntimeError) as error:  # no torchvision, or too little shared memory
        return {"error": first_line(error)}


def rate(rounds: Sequence[float]) -> dict[str, Any]:
    """Return the median of the rounds, and the rounds.

    >>> rate([1.0, 9.0, 2.0])
    {'images_per_s': 2.0, 'rounds': [1.0, 9.0, 2.0]}
    """
    return {"images_per_s": median(rounds), "rounds": list(rounds)}


def ratios(bare: Sequence[float], ours: Sequence[float], plain: Sequence[float]) -> dict[str, float]:
    """Return the ratio of our rate to that of the bare step, and to that of the plain loop if it ran.

    >>> ratios([10.0], [9.0], [3.0])
    {'ours_to_bare': 0.9, 'ours_to_plain': 3.0}
    """
    others = {"ours_to_bare": bare, "ours_to_plain": plain}
    return {name: median(ours) / median(rates) for name, rates in others.items() if rates}
