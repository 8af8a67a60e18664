"""The sections of a `Config`: every setting with its type, its range, its default and its help text.

The fields are checked on construction, with the same error messages in Python and on the command line. Names in
square brackets are those of the paper.
"""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Suppress, arg

from divconq.checks import SettingError
from divconq.division import DIVISIONS
from divconq.io.yaml_values import (
    NOT_EMPTY,
    POWER_OF_TWO,
    above,
    at_least,
    at_most,
    below,
    convert,
    metavar,
    one_of,
)
from divconq.masks import MASK_ACTIVATIONS, MASKS

# The upper bounds are far above all that is useful. Beyond them a run would overflow, or fill the memory.
Count = Annotated[int, at_least(0), at_most(10**9)]
Positive = Annotated[int, at_least(1), at_most(10**9)]
Pixels = Annotated[int, at_least(1), at_most(4096)]
Workers = Annotated[int, at_least(0), at_most(1024)]
Minutes = Annotated[float, at_least(0), at_most(10**9)]
Dimensions = Annotated[int, at_least(1), at_most(65_536)]
NonNegative = Annotated[float, at_least(0), at_most(10**9)]
Share = Annotated[float, above(0), at_most(1)]
Mean = Annotated[float, at_least(0), at_most(1)]  # of pixels from 0 to 1
Deviation = Annotated[float, above(0), at_least(0.001), at_most(1000)]


@dataclass(frozen=True)
class Section:
    """A group of settings. Every field is converted to its type and checked on construction."""

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            object.__setattr__(self, item.name, checked(item, getattr(self, item.name)))


def checked(item: "dataclasses.Field[Any]", value: object) -> Any:  # noqa: ANN401
    """Return the value converted to the type of the field. Raise SettingError if it is not allowed."""
    try:
        return convert(item.type, value)
    except ValueError as error:
        known = item.default is not dataclasses.MISSING and ";" not in str(error)
        hint = f"; the default is {item.default}" if known else ""
        raise SettingError(f"{setting_name(item)} must be {error}{hint}") from None


def setting_name(item: "dataclasses.Field[Any]") -> str:
    """Return the flat name of a field. It is also its flag, except that ``import_file`` is set by ``--import``."""
    return item.name if flag_name(item) == "import" else flag_name(item)


def flag_name(item: "dataclasses.Field[Any]") -> str:
    """Return the name of a field on the command line."""
    names = [extra.name for extra in getattr(item.type, "__metadata__", ()) if hasattr(extra, "name")]
    return str(names[0]) if names else item.name


@dataclass(frozen=True)
class DataConfig(Section):
    """The images to train and test on, and how the network sees them."""

    name: Annotated[str, arg(name="data")] = "demo"
    """demo, a benchmark (cub, cars, sop, inshop, vehicleid, omniglot), a folder of class folders, or a .csv or .parquet
    file."""
    root: Path | None = None
    """Folder of a benchmark on disk."""
    test_classes: Annotated[float, above(0), below(1)] = 0.5
    """Share of the classes to test on, for own photos without a test folder."""
    val_classes: Count = 0
    """Training classes to hold out; the best epoch is then chosen by MAP@R on them, not on the test classes."""
    val_groups: bool = False
    """Hold out whole super-categories (such as bird families), so that no related class is in the training set."""
    singletons: Literal["refuse", "drop", "keep"] = "refuse"
    """Training classes with a single image: stop with an error, drop them, or keep them as negatives."""
    train_classes: Annotated[int, at_least(2), at_most(10**9)] | None = None
    """Train on so many classes only, drawn at random, to see what fewer classes do; None takes all."""
    train_images: Annotated[int, at_least(2), at_most(10**9)] | None = None
    """Train on so many images of each class only, drawn at random; None takes all."""
    image_size: Pixels = 224
    """Side of the square image that the network sees, in pixels."""
    resize: Pixels = 256
    """Short side of the image before the crop, in pixels."""
    decode_size: Pixels | None = None
    """Short side at which images are decoded and stored, for sharper random_resized crops; None takes resize."""
    augmentation: Literal[
        "none", "crop", "standard", "geom", "geom+color", "color-heavy", "geom-authors", "geom+color-authors"
    ] = "standard"
    """Random changes to training images; those with -authors as in the program of the paper's authors."""
    crop: Literal["random", "random_resized"] = "random"
    """Training crop: of a fixed scale, or of a random area and shape."""
    crop_scale: tuple[Share, Share] = (0.08, 1.0)
    """Smallest and largest share of the image that a random_resized crop covers."""

    @property
    def decoded(self) -> int:
        """Short side at which images are decoded and stored, in pixels."""
        return self.resize if self.decode_size is None else self.decode_size


@dataclass(frozen=True)
class ModelConfig(Section):
    """The network: backbone, pooling and embedding layer."""

    backbone: str = "resnet50.tv_in1k"
    """Any timm model, or small; the default is ResNet-50 with torchvision's first ImageNet weights, as in the paper."""
    pretrained: bool = True
    """Start from timm's pretrained weights."""
    backbone_weights: Path | None = None
    """Start from this .safetensors file instead."""
    import_file: Annotated[Path | None, arg(name="import")] = None
    """Run this Python file first; it may register a backbone or a loss."""
    dim: Dimensions = 512
    """Dimensions of the embedding [d]."""
    trained: Literal["whole", "head"] = "whole"
    """Train the whole network, or only its head, on features of the frozen backbone; images are then not augmented."""
    pooling: Literal["avg", "max", "avgmax", "gem"] = "avg"
    """Pooling of the backbone's feature map into a vector; gem is a power mean with a learned exponent."""
    head: Literal["linear", "clml"] = "linear"
    """Embedding layer: linear, or clml, a mixture of k_max linear layers; it replaces division and masks."""
    dropout: Annotated[float, at_least(0), below(1)] = 0.01
    """Dropout before the embedding layer."""
    freeze_batchnorm: bool = True
    """Keep the pretrained running statistics of BatchNorm."""
    mean: tuple[Mean, Mean, Mean] | None = None
    """Colour mean of the images; None takes that of the weights file or the backbone."""
    std: tuple[Deviation, Deviation, Deviation] | None = None
    """Colour standard deviation of the images; None takes that of the weights file or the backbone."""


@dataclass(frozen=True)
class DivisionConfig(Section):
    """The division of the data into clusters."""

    strategy: Annotated[str, one_of(DIVISIONS), arg(name="division", metavar=metavar(DIVISIONS))] = (
        "progressive"
    )
    """How to divide the data: double the clusters step by step, all at once, at random, or by super-category."""
    k_max: Annotated[int, at_most(4096), POWER_OF_TWO] = 4
    """Largest number of clusters and subspaces, a power of two; 1 is plain training [K_max]."""
    divide_every: Positive = 10
    """Epochs between divisions [E]."""
    cluster_on: Literal["embedding", "features"] = "embedding"
    """Vectors to cluster: the conquered embedding, or the features of the backbone."""
    cluster_order: Literal["random", "round_robin"] = "random"
    """Order in which the clusters give batches."""
    cluster_steps: Literal["proportional", "equal"] = "proportional"
    """Steps of each cluster in an epoch: in proportion to its images, or the same number for all."""
    epoch_length: Literal["images", "largest", "smallest"] = "images"
    """Steps of an epoch: all images / batch, or the clusters times the batches of the largest or smallest one."""
    freeze_backbone_epochs: Count = 0
    """Epochs after each division in which only the head and the masks are trained."""
    finetune_from: Count | None = None
    """First epoch that is trained in the conquered space; None never does."""


@dataclass(frozen=True)
class MasksConfig(Section):
    """The division of the embedding into subspaces."""

    kind: Annotated[str, one_of(MASKS), arg(name="masks", metavar=metavar(MASKS))] = "learned"
    """Subspaces: learned masks, fixed blocks of dimensions, fixed blocks that rotate, or the whole embedding."""
    activation: Annotated[
        str, one_of(MASK_ACTIVATIONS), arg(name="mask_activation", metavar=metavar(MASK_ACTIVATIONS))
    ] = "relu"
    """What keeps learned masks at 0 or above; relu is that of the paper, with softplus no entry reaches 0."""
    overlap_weight: NonNegative = 1.0
    """Weight of the overlap of the masks in the loss [lambda]."""
    lr_scale: Annotated[NonNegative, arg(name="mask_lr_scale")] = 100.0
    """Learning rate of the masks, as a multiple of lr."""
    weight_decay: Annotated[NonNegative, arg(name="mask_weight_decay")] = 0.0
    """Weight decay of the masks."""
    split_noise: Annotated[float, at_least(0), below(1), arg(name="mask_split_noise")] = 0.0
    """Relative noise between the two copies of a learned mask; at 0, as in the paper, the overlap has no gradient."""
    reset: Annotated[bool, arg(name="mask_reset")] = True
    """Reset Adam's moments of the masks when they are split."""
    conquer: Literal["sum", "plain"] = "sum"
    """Final embedding: weighted by the sum of the masks, or unweighted."""


@dataclass(frozen=True)
class LossConfig(Section):
    """The loss and its arguments; --loss.NAME and --miner.NAME set an argument of the loss or the miner."""

    name: Annotated[str, arg(name="loss")] = "margin"
    """margin, triplet, soft_triplet, npairs, multi_similarity, proxy_anchor, or any loss of pytorch-metric-learning."""
    args: Annotated[Suppress[dict[str, Any]], arg(name="loss_args")] = field(default_factory=dict)
    """Keyword arguments of the loss."""
    alpha: NonNegative | None = None
    """Argument alpha of the loss, the margin of the margin loss; None takes the default of the loss."""
    beta: NonNegative | None = None
    """Argument beta of the loss; None takes its default. The margin loss pushes classes beta + alpha apart, but C
    classes in a block of D = dim / k_max dimensions can be at most sqrt(2) apart if C > D + 1, and less if C > 2 D.
    Start near beta + alpha = sqrt(2) - sqrt(log(C) / D), the distance of random directions to their nearest one."""
    miner: str | None = None
    """Any miner of pytorch-metric-learning, for its losses."""
    miner_args: Suppress[dict[str, Any]] = field(default_factory=dict)
    """Keyword arguments of the miner."""
    lr_scale: Annotated[NonNegative, arg(name="loss_lr_scale")] = 100.0
    """Learning rate of the loss's own parameters, as a multiple of lr."""
    memory: Count = 0
    """Past embeddings that a batch is also compared with, from all clusters; 0 for none."""
    memory_weight: NonNegative = 1.0
    """Weight of the loss of a batch against the memory."""


@dataclass(frozen=True)
class OptimisationConfig(Section):
    """Batches, the optimiser, its learning rate over the epochs, and the average of the weights."""

    epochs: Annotated[int, at_least(1), at_most(10**6)] = 120
    """Number of epochs."""
    batch: Annotated[int, at_least(2), at_most(10**6)] = 112
    """Images in a batch; all come from one cluster."""
    per_class: Annotated[int, at_least(2), at_most(10**6)] | None = None
    """Images of each class in a batch; None draws the images uniformly."""
    class_sampling: Literal["images", "classes"] = "images"
    """With per_class, draw classes in proportion to their images, or all classes equally often."""
    lr: Annotated[float, above(0), at_most(1000)] = 1e-5
    """Learning rate of the optimiser."""
    head_lr_scale: NonNegative = 1.0
    """Learning rate of the embedding layer, as a multiple of lr."""
    weight_decay: NonNegative = 1e-3
    """Weight decay of the optimiser."""
    norm_weight_decay: NonNegative | None = None
    """Weight decay of the weights and biases of normalisation layers; None takes weight_decay."""
    optimizer: Literal["adam", "adamw"] = "adam"
    """Adam, which adds the weight decay to the gradient, or AdamW, which shrinks the weights by lr * weight_decay."""
    schedule: Literal["constant", "cosine", "step"] = "constant"
    """Learning rate over the epochs: constant, falling to 0 along a cosine, or dropping in steps."""
    warmup_epochs: NonNegative = 0.0
    """Epochs in which the learning rate grows linearly from 0; a cosine begins after them."""
    lr_drop_every: Positive = 10
    """Epochs between the drops of the step schedule."""
    lr_drop: Share = 0.1
    """Factor of the learning rate at each drop of the step schedule."""
    ema: Annotated[float, above(0), below(1)] | None = None
    """Decay per step of the moving average of the weights, for example 0.999; the average embeds. None: no average."""
    seed: Annotated[int, at_least(0), at_most(2**63 - 1)] = 0
    """Seed of all random numbers."""


@dataclass(frozen=True)
class RuntimeConfig(Section):
    """How and where a run is computed; the result changes by rounding at most."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to train on; auto takes the GPU if there is one."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """bf16 runs the network in mixed precision; auto does so on a GPU that supports it."""
    compile: Literal["auto", "off"] = "auto"
    """On a GPU, compile the step and capture it as one CUDA graph; slow to start, then fast."""
    cache: bool = True
    """Decode the images once into a file (in ~/.cache/divconq, or $DIVCONQ_CACHE) and read them from there."""
    workers: Workers = 0
    """Threads that decode images; 0 takes one for each processor core."""
    save_minutes: Minutes = 1.0
    """Minutes between checkpoints; the first and the last epoch always end with one."""
    save_steps: Positive | None = None
    """Steps between further checkpoints; None writes none."""


@dataclass(frozen=True)
class EvaluationConfig(Section):
    """The scores of a run."""

    every: Annotated[Positive, arg(name="eval_every")] = 1
    """Epochs between evaluations; the last epoch is always evaluated."""
    ks: Annotated[tuple[Positive, ...], NOT_EMPTY] = (1, 2, 4, 8)
    """The k of Recall@k."""
    nmi: bool = True
    """Also cluster the test images and report NMI."""
    nmi_runs: Positive = 1
    """Number of k-means with different seeds; NMI is their mean."""
    train_recall: bool = False
    """Also report R@1 among the training images; every evaluation then embeds all of them."""
    same_camera: Literal["drop", "keep"] = "drop"
    """Matches of the same identity by the same camera, where cameras are known: drop or keep them."""
