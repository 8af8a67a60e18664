"""All measurements of a machine, one after the other, as one report."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
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
from divconq.data.batches.augmentation import augmentation
from divconq.experiments.origin import code_version, hardware
from divconq.model import make_model
from divconq.training.datasets import open_data
from divconq.training.setup import prepare

FORMAT = "divconq bench 1"
PARTS = ("step", "embed", "kmeans", "knn", "nmi", "memory")
CLUSTERS = 4  # of training
K, ITERATIONS = 32, 100  # of k-means
PER_CLASS = 60_502 / 11_316  # images of a class, as in the test set of Stanford Online Products


@dataclass(frozen=True)
class Sizes:
    """How much is measured: images, batch and rounds of training, points of the algorithms."""

    backbone: str
    image_size: int
    batch: int
    images: int | None
    dim: int
    epochs: int  # in a round
    rounds: int
    batches: int  # of the plain loop in a round
    clustered: int  # points of k-means
    searched: int  # points of search and NMI
    evaluated: tuple[int, ...]  # points whose evaluation's memory is measured


GPU = Sizes(
    "resnet50.tv_in1k", 224, 112, None, 512, 2, 5, 30, 100_000, 60_502, (10_000, 50_000, 100_000, 500_000)
)
CPU = Sizes("small", 48, 32, 320, 128, 1, 3, 5, 10_000, 10_000, (2_500, 5_000, 10_000))


@dataclass(frozen=True)
class Setup:
    """What to measure, and on what."""

    sizes: Sizes
    parts: tuple[str, ...] = PARTS
    data: str = "demo"
    root: Path | None = None
    import_file: Path | None = None
    augmentation: Literal["none", "standard", "geom", "geom+color", "color-heavy"] = "geom+color"
    crop: Literal["random", "random_resized"] = "random_resized"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    compile: Literal["auto", "off"] = "auto"
    others: bool = True


def default_sizes(device: str, **chosen: Any) -> Sizes:  # noqa: ANN401
    """The sizes for a device, with those changed that are ``chosen`` and not None.

    >>> default_sizes("cpu", batch=8, dim=None).batch
    8
    """
    sizes = GPU if pick_device(device).type == "cuda" else CPU
    return replace(sizes, **{name: value for name, value in chosen.items() if value is not None})


def parse_parts(text: str | None) -> tuple[str, ...]:
    """Which parts to measure, in their own order.

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
    """Measure the parts that are asked for; plain numbers that JSON can hold.

    ``say`` is told what comes next, ``keep`` is given the report whenever there is more of it.
    """
    device, sizes = pick_device(setup.device), setup.sizes
    report: dict[str, Any] = {
        "format": FORMAT,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "hardware": hardware(device.type),
        "cpus": cpus(),
        "torch": torch.__version__,
        "code": code_version(),
        "device": device.type,
        "others": setup.others,
    }
    if {"step", "embed"} & set(setup.parts):
        measure_training(setup, device, report, say, keep)
    n, dim, others = sizes.searched, sizes.dim, setup.others
    classes = max(2, round(n / PER_CLASS))
    if "kmeans" in setup.parts:
        say("k-means")
        ways = compare_kmeans(sizes.clustered, dim, k=K, iterations=ITERATIONS, device=device, others=others)
        report["kmeans"] = {
            "points": sizes.clustered,
            "dim": dim,
            "k": K,
            "iterations": ITERATIONS,
            "ways": ways,
        }
        keep(report)
    if "knn" in setup.parts:
        say("search")
        ways = compare_search(n, dim, classes=classes, device=device, others=others)
        report["knn"] = {"points": n, "dim": dim, "classes": classes, "ways": ways}
        keep(report)
    if "nmi" in setup.parts:
        say("NMI")
        ways = compare_nmi(n, dim, classes=classes, device=device, others=others)
        report["nmi"] = {"points": n, "dim": dim, "classes": classes, "ways": ways}
        keep(report)
    if "memory" in setup.parts:
        say("memory of an evaluation")
        report["memory"] = []
        for n in sizes.evaluated:
            report["memory"].append(
                {"points": n, "dim": sizes.dim, "bytes": evaluation_memory(n, sizes.dim, device)}
            )
            keep(report)
    return report


def measure_training(
    setup: Setup,
    device: torch.device,
    report: dict[str, Any],
    say: Callable[[str], object],
    keep: Callable[[dict[str, Any]], object],
) -> None:
    """Add to the report: training, end to end and in parts, and the pass that embeds all images."""
    with ExitStack() as stack:
        say(f"images of {setup.data}")
        data = stack.enter_context(image_files(setup.data, setup.sizes.images, cpus()))
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
            rates, way = training_rates(job, epochs=setup.sizes.epochs, rounds=setup.sizes.rounds)
            training = {
                **{name: asdict(setup.sizes)[name] for name in ("backbone", "image_size", "batch", "dim")},
                "augmentation": config.augmentation,
                "crop": config.crop,
                "clusters": job.masks.k,
                "precision": "bf16" if uses_bf16(config.precision, device) else "fp32",
                "way": way,
                "steps": -(-len(job.train) // config.batch) * setup.sizes.epochs,
                **{name: rate(values) for name, values in rates.items()},
            }
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


def config_of(setup: Setup, data: str) -> Config:
    """The run whose speed is measured: the margin loss, learned masks, four clusters, a network of random weights."""
    return Config(
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
    """The rate of the plain loop on the same files; an ``error`` instead where its workers cannot run."""
    images = first(open_data(config)[0].train, setup.sizes.images)
    try:
        return rate(
            plain_rates(
                make_model(config.backbone, config.dim, dropout=config.dropout),
                files_of(images.pixels),
                images.labels,
                augmentation(config.augmentation, config.crop, config.crop_scale),
                size=config.image_size,
                resize=config.resize,
                batch=config.batch,
                device=device,
                batches=setup.sizes.batches,
                rounds=min(setup.sizes.rounds, 3),
            )
        )
    except (ImportError, RuntimeError) as error:  # no torchvision; too little shared memory for the workers
        return {"error": first_line(error)}


def rate(rounds: Sequence[float]) -> dict[str, Any]:
    """The median over the rounds, and each of them.

    >>> rate([1.0, 9.0, 2.0])
    {'images_per_s': 2.0, 'rounds': [1.0, 9.0, 2.0]}
    """
    return {"images_per_s": median(rounds), "rounds": list(rounds)}


def ratios(bare: Sequence[float], ours: Sequence[float], plain: Sequence[float]) -> dict[str, float]:
    """How our rate compares: to the bare step's, and to the plain loop's where there is one.

    >>> ratios([10.0], [9.0], [3.0])
    {'ours_to_bare': 0.9, 'ours_to_plain': 3.0}
    """
    others = {"ours_to_bare": bare, "ours_to_plain": plain}
    return {name: median(ours) / median(rates) for name, rates in others.items() if rates}
