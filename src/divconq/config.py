"""Every switch of a training run, with the default this project recommends; frozen, validated once."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
import yaml

from divconq.checks import check_power_of_two
from divconq.io.yaml_values import convert, read_yaml

RGB = tuple[float, float, float]
# What makes an epoch the best: on the few images of held-out classes R@1 is noise, MAP@R looks at all of a class.
BEST_BY = {"held_out": "val_map@r", "test": "recall@1"}
MAY_CHANGE = {
    **dict.fromkeys(
        ("data", "root", "import_file", "pretrained", "backbone_weights"), "the result stays the same"
    ),
    **dict.fromkeys(
        ("cache", "workers", "save_minutes", "save_steps", "train_recall"), "the result stays the same"
    ),
    **dict.fromkeys(("device", "precision", "compile"), "the result changes by rounding only"),
    **dict.fromkeys(("epochs", "eval_every"), "every epoch is trained as before"),
}  # what a run may go on with that was begun with another, and what becomes of it


@dataclass(frozen=True)
class Config:
    """What a training run does. The names in brackets are the paper's."""

    # --- data ---
    data: str = "demo"
    """demo, a benchmark (cub, cars, sop, inshop, vehicleid), a folder of class folders, or a .csv or .parquet file."""
    root: Path | None = None
    """Where a benchmark lies on disk."""
    cache: bool = True
    """Decode images once into a file (in ~/.cache/divconq, or $DIVCONQ_CACHE) and read them from there."""
    test_classes: float = 0.5
    """Own photos without a test folder: the share of the classes that is kept for testing."""
    val_classes: int = 0
    """Hold out this many training classes, and choose the best epoch by MAP@R on them, not on the test classes."""
    val_groups: bool = False
    """Hold out whole super-categories (bird families, say), so that no relative of a held-out class is trained on."""
    singletons: Literal["refuse", "drop", "keep"] = "refuse"
    """What to do with training classes of one image: stop, drop them, or keep them as negatives."""
    image_size: int = 224
    """Side of the square the network sees."""
    resize: int = 256
    """Short side of the image before it is cropped."""
    augmentation: Literal["none", "standard", "geom", "geom+color", "color-heavy"] = "standard"
    """Random changes to training images."""
    crop: Literal["random", "random_resized"] = "random"
    """A crop of fixed scale, or one of random area and shape."""
    crop_scale: tuple[float, float] = (0.08, 1.0)
    """Share of the image that a random_resized crop covers, least and most."""
    workers: int = 0
    """How many decode images at a time; 0 takes one for each processor core."""

    # --- network ---
    backbone: str = "resnet50.tv_in1k"
    """Any timm model, or small; the default is ResNet-50 with torchvision's first ImageNet weights, as in the paper."""
    pretrained: bool = True
    """Start from timm's pretrained weights."""
    backbone_weights: Path | None = None
    """Start from this .safetensors file instead."""
    import_file: Annotated[Path | None, tyro.conf.arg(name="import")] = None
    """Run this Python file first, so that a backbone or loss it registers can be named."""
    dim: int = 512
    """Dimensions of the embedding [d]."""
    pooling: Literal["avg", "max", "avgmax"] = "avg"
    """How the backbone's map becomes a vector."""
    dropout: float = 0.01
    """Dropout before the embedding layer."""
    freeze_batchnorm: bool = True
    """Keep BatchNorm's running statistics as they were pretrained."""
    mean: RGB | None = None
    """Colour mean, if neither the weights nor the backbone say it right."""
    std: RGB | None = None
    """Colour deviation, likewise."""

    # --- division of the data ---
    division: Literal["progressive", "flat", "random", "labels"] = "progressive"
    """How the data is divided: doubling the clusters step by step, at once, at random, by super-category."""
    k_max: int = 4
    """Largest number of clusters and subspaces, a power of two; 1 is plain training [K_max]."""
    divide_every: int = 10
    """Epochs between divisions [E]."""
    cluster_on: Literal["embedding", "features"] = "embedding"
    """What is clustered: the conquered embedding, or what the backbone gives."""
    cluster_order: Literal["random", "round_robin"] = "random"
    """Which cluster the next batch comes from."""
    freeze_backbone_epochs: int = 0
    """After each division, train only the head and the masks for this many epochs."""

    # --- division of the embedding ---
    masks: Literal["learned", "fixed", "none"] = "learned"
    """Subspaces: learned masks, fixed orthogonal blocks, or the whole embedding for every cluster."""
    overlap_weight: float = 1.0
    """Weight of the masks' overlap in the loss [lambda]."""
    mask_lr_scale: float = 100.0
    """The masks' learning rate, in units of lr."""
    mask_weight_decay: float = 0.0
    """The masks' weight decay."""
    mask_split_noise: float = 0.0
    """How far the copies of a learned mask start apart, in parts of it; at 0, as in the paper, L_s cannot part them."""
    mask_reset: bool = True
    """Forget Adam's moments of the masks when they are split."""
    conquer: Literal["sum", "plain"] = "sum"
    """The final embedding: weighted by the sum of the masks, or as it is."""
    finetune_from: int | None = None
    """From this epoch on train in the conquered space; None: never."""

    # --- loss ---
    loss: str = "margin"
    """margin, triplet, soft_triplet, npairs, or any loss of pytorch-metric-learning; --loss.NAME sets an argument."""
    loss_args: tyro.conf.Suppress[dict[str, Any]] = field(default_factory=dict)
    """Keyword arguments of the loss."""
    miner: str | None = None
    """Any miner of pytorch-metric-learning for its losses; --miner.NAME sets an argument."""
    miner_args: tyro.conf.Suppress[dict[str, Any]] = field(default_factory=dict)
    """Keyword arguments of the miner."""
    loss_lr_scale: float = 100.0
    """Learning rate of the loss's own parameters, in units of lr."""

    # --- training ---
    epochs: int = 120
    """How long to train."""
    batch: int = 112
    """Images in a batch; all come from one cluster."""
    per_class: int | None = None
    """Images of each class in a batch; None draws them uniformly."""
    lr: float = 1e-5
    """Adam's learning rate."""
    head_lr_scale: float = 1.0
    """Learning rate of the embedding layer, in units of lr."""
    weight_decay: float = 1e-3
    """Adam's weight decay."""
    norm_weight_decay: float | None = None
    """Weight decay of the weights and biases of normalisation layers; None: as weight_decay."""
    save_minutes: float = 1.0
    """Minutes between checkpoints; the ends of the first and of the last epoch always have one."""
    save_steps: int | None = None
    """Also write a checkpoint after this many steps; None: by the clock alone."""
    seed: int = 0
    """Seed of everything that is random."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto takes the GPU if there is one."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """bf16 runs the network in mixed precision; auto does so on a GPU that has it."""
    compile: Literal["auto", "off"] = "auto"
    """On a GPU: compile the step and capture it as one CUDA graph, which takes a while at first and then is fast."""

    # --- evaluation ---
    eval_every: int = 1
    """Epochs between evaluations; the last epoch is always evaluated."""
    ks: tuple[int, ...] = (1, 2, 4, 8)
    """The k of Recall@k."""
    nmi: bool = True
    """Also cluster the test images and report NMI."""
    train_recall: bool = False
    """Also report R@1 of the training images among themselves; embeds all of them once more at every evaluation."""
    same_camera: Literal["drop", "keep"] = "drop"
    """What to do with matches of the same identity by the same camera, where cameras are known."""

    @property
    def best_by(self) -> str:
        """The score that tells the best epoch.

        >>> Config(data="cub", val_classes=10).best_by
        'val_map@r'
        """
        return BEST_BY["held_out" if self.val_classes else "test"]

    def __post_init__(self) -> None:
        check_power_of_two("k_max", self.k_max)
        for name in ("epochs", "divide_every", "eval_every", "dim", "image_size"):
            _at_least(name, getattr(self, name), 1)
        for name in ("val_classes", "freeze_backbone_epochs", "seed", "workers"):
            _at_least(name, getattr(self, name), 0)
        for name in (
            "overlap_weight",
            "mask_lr_scale",
            "mask_weight_decay",
            "loss_lr_scale",
            "head_lr_scale",
            "weight_decay",
            "save_minutes",
        ):
            _at_least(name, getattr(self, name), 0.0)
        if not 0 <= self.mask_split_noise < 1:
            raise ValueError(f"mask_split_noise must lie in [0, 1), got {self.mask_split_noise}")
        if self.norm_weight_decay is not None:
            _at_least("norm_weight_decay", self.norm_weight_decay, 0.0)
        if self.val_groups and not self.val_classes:
            raise ValueError(
                "val_groups says which classes are held out, and val_classes how many: it must be above 0, got 0"
            )
        _at_least("batch", self.batch, 2)
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ValueError(f"lr must be a positive number, got {self.lr}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {self.dropout}")
        if not 0 < self.test_classes < 1:
            raise ValueError(f"test_classes must lie between 0 and 1, got {self.test_classes}")
        if self.masks == "fixed" and self.dim < self.k_max:
            raise ValueError(
                f"fixed masks give each cluster at least one dimension: dim must be at least k_max = {self.k_max}, "
                f"got {self.dim}; raise --dim, lower --k-max or use --masks learned"
            )
        if self.per_class is not None:
            _at_least("per_class", self.per_class, 2)
            if self.batch % self.per_class:
                lower = self.batch // self.per_class * self.per_class
                raise ValueError(
                    f"batch must be a multiple of per_class = {self.per_class}, got {self.batch}; "
                    f"use {lower} or {lower + self.per_class}"
                )
        if self.resize < self.image_size:
            raise ValueError(f"resize must be at least image_size = {self.image_size}, got {self.resize}")
        if not self.ks or min(self.ks) < 1:
            raise ValueError(f"ks must be positive numbers, got {self.ks}; use for example --ks 1 2 4 8")
        if self.finetune_from is not None:
            _at_least("finetune_from", self.finetune_from, 0)
        if self.save_steps is not None:
            _at_least("save_steps", self.save_steps, 1)


def _at_least(name: str, value: float, least: float) -> None:
    if not value >= least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def to_yaml(config: Config) -> str:
    """The config as YAML, in the order it is declared.

    >>> from_yaml(to_yaml(Config(k_max=8))) == Config(k_max=8)
    True
    """

    def plain(value: object) -> object:
        if isinstance(value, Path):
            return str(value)
        return list(value) if isinstance(value, tuple) else value

    values = {name: plain(value) for name, value in dataclasses.asdict(config).items()}
    return yaml.safe_dump(values, sort_keys=False)


def from_yaml(text: str) -> Config:
    """Read a config back; unknown and missing names and values of the wrong kind are errors."""
    values = read_yaml(text, "a config")
    if not isinstance(values, dict):
        raise ValueError("a config must be a table of names and values")
    kinds = {field.name: field.type for field in dataclasses.fields(Config)}
    values = upgraded(values)
    unknown = sorted(str(name) for name in values if name not in kinds)
    if unknown:
        raise ValueError(
            f"unknown settings {', '.join(unknown)}; it was written by another version of divconq"
        )
    for name, value in values.items():
        try:
            values[name] = convert(kinds[name], value)
        except ValueError as error:
            raise ValueError(f"{name} must be {error}") from error
    return Config(**values)


def upgraded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return flat settings of an older version under their present names.

    >>> upgraded({"loss": "margin", "loss_args": {"apart": True}})
    {'loss': 'margin', 'loss_args': {'without_replacement': True}}
    """
    settings = dict(settings)
    if settings.get("loss", "margin") == "margin" and isinstance(settings.get("loss_args"), dict):
        renamed = {"apart": "without_replacement", "even": "equal_pairs"}
        arguments = settings["loss_args"]
        settings["loss_args"] = {renamed.get(name, name): value for name, value in arguments.items()}
    return settings


def differences(config: Config, other: Config) -> dict[str, tuple[object, object]]:
    """The settings in which two configs differ, each with both values.

    >>> differences(Config(k_max=4), Config(k_max=8))
    {'k_max': (4, 8)}
    """
    names = [field.name for field in dataclasses.fields(Config)]
    pairs = {name: (getattr(config, name), getattr(other, name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
