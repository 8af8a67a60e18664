"""Everything a run needs, built from its config and checked before a single file is written."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from divconq.config import Config
from divconq.data import Dataset, ImageSet, drop_singletons, hold_out, open_dataset
from divconq.data.augmentation import Augmentation, augmentation
from divconq.data.cache import cached
from divconq.data.sampler import plan_epoch
from divconq.embed import embed
from divconq.evaluation import evaluate
from divconq.losses import make_loss
from divconq.masks import Masks
from divconq.model import Embedder, import_file, make_model
from divconq.objective import Objective
from divconq.optim import make_optimizer


@dataclass(frozen=True)
class Job:
    """The parts that take part in training."""

    config: Config
    device: torch.device
    train: ImageSet
    validation: ImageSet | None
    test: ImageSet
    gallery: ImageSet | None
    changes: Augmentation
    model: Embedder
    masks: Masks
    loss: nn.Module
    objective: Objective
    optimizer: Optimizer

    def embed(self, images: ImageSet, *, features: bool = False) -> Tensor:
        """All images as unit vectors of the conquered space, or as the backbone's features."""
        mask = None if features else self.masks.conquer().detach()
        return embed_images(self.config, self.model, images, mask, features=features)

    def scores(self) -> dict[str, float]:
        """How well the conquered space searches the test classes, and those held out (``val_...``)."""
        mask = self.masks.conquer().detach()
        scores = search_scores(self.config, self.model, mask, self.test, self.gallery)
        if self.validation is not None:
            held = search_scores(self.config, self.model, mask, self.validation)
            scores |= {f"val_{name}": score for name, score in held.items()}
        return scores


def prepare(config: Config) -> Job:
    """Open the data and build network, masks, loss and optimiser; bad input ends here."""
    device = pick_device(config.device)
    if config.import_file is not None:
        import_file(config.import_file)
    data, validation = open_data(config)
    if config.cache:
        data = Dataset(
            data.name, cached(data.train), cached(data.test), data.gallery and cached(data.gallery)
        )
        validation = validation and cached(validation)
    torch.manual_seed(config.seed)
    model = make_model(
        config.backbone,
        config.dim,
        pretrained=config.pretrained,
        weights=config.backbone_weights,
        pooling=config.pooling,
        dropout=config.dropout,
        mean=config.mean,
        std=config.std,
        freeze_batchnorm=config.freeze_batchnorm,
    ).to(device)
    model = model.to(memory_format=torch.channels_last)
    masks = Masks(config.dim, config.k_max, config.masks, config.conquer)
    loss = make_loss(
        config.loss,
        config.loss_args,
        num_classes=len(data.train.names),
        dim=config.dim,
        miner=config.miner,
        miner_arguments=config.miner_args,
    )
    objective = Objective(loss, masks, config.overlap_weight).to(device)
    optimizer = make_optimizer(
        model,
        masks,
        loss,
        lr=config.lr,
        weight_decay=config.weight_decay,
        mask_lr_scale=config.mask_lr_scale,
        mask_weight_decay=config.mask_weight_decay,
        loss_lr_scale=config.loss_lr_scale,
    )
    return Job(
        config,
        device,
        data.train,
        validation,
        data.test,
        data.gallery,
        augmentation(config.augmentation, config.crop, config.crop_scale),
        model,
        masks,
        loss,
        objective,
        optimizer,
    )


def pick_device(name: str) -> torch.device:
    """The device to train on; ``auto`` is the GPU if there is one.

    >>> pick_device("cpu")
    device(type='cpu')
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "device is cuda, but torch finds no GPU here; use --device cpu, or install a CUDA build of torch"
        )
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")


def open_data(config: Config) -> tuple[Dataset, ImageSet | None]:
    """The dataset, with the classes to validate on split off its training classes."""
    data = open_dataset(
        config.data,
        root=config.root,
        size=config.resize,
        test_classes=config.test_classes,
        workers=config.workers,
        seed=config.seed,
    )
    train, validation = data.train, None
    if config.val_classes:
        train, validation = hold_out(train, config.val_classes, seed=config.seed)
    alone = (train.labels.bincount() == 1).nonzero().flatten().tolist()
    if alone and config.singletons == "refuse":
        some = ", ".join(repr(train.names[label]) for label in alone[:3])
        raise ValueError(
            f"{len(alone)} training classes have one image only ({some}{', ...' if len(alone) > 3 else ''}): nothing "
            "can be learned to match it; add images, or choose --singletons drop or --singletons keep"
        )
    if alone and config.singletons == "drop":
        train = drop_singletons(train)
    if config.k_max > len(train):
        raise ValueError(
            f"k_max must be at most the number of training images, {len(train)}, got {config.k_max}; lower --k-max"
        )
    if config.division == "labels" and config.k_max > 1 and train.groups is None:
        raise ValueError(
            f"division 'labels' needs super-categories, and {config.data!r} has none; use --division progressive"
        )
    check_test_images(data, config.ks)
    whole = torch.zeros_like(train.labels)
    plan_epoch(
        train.labels, whole, 1, batch=config.batch, per_class=config.per_class, seed=config.seed, epoch=0
    )
    return Dataset(data.name, train, data.test, data.gallery), validation


def check_test_images(data: Dataset, ks: tuple[int, ...]) -> None:
    """Refuse images that cannot be searched: fewer than the largest k, or nothing to find."""
    findable = len(data.test) - 1 if data.gallery is None else len(data.gallery)
    if findable < max(ks):
        raise ValueError(
            f"Recall@{max(ks)} needs {max(ks)} images to find, and a test query can find {findable}; "
            f"add test images or lower --ks"
        )
    searched, least = (data.test, 2) if data.gallery is None else (data.gallery, 1)
    counts = searched.labels.bincount(minlength=int(data.test.labels.max()) + 1)
    if not (counts[data.test.labels] >= least).any():
        raise ValueError("no test image has another of its class to find; add images to the test classes")


def embed_images(
    config: Config,
    model: Embedder,
    images: ImageSet,
    mask: Tensor | None = None,
    *,
    features: bool = False,
    progress: str | None = None,
) -> Tensor:
    """Unit vectors of all images, seen the way ``config`` shows test images."""
    return embed(
        model,
        images,
        mask,
        size=config.image_size,
        resize=config.resize,
        layer="features" if features else "embedding",
        bf16=config.precision == "bf16",
        progress=progress,
    )


def search_scores(
    config: Config,
    model: Embedder,
    mask: Tensor | None,
    test: ImageSet,
    gallery: ImageSet | None = None,
    *,
    progress: str | None = None,
) -> dict[str, float]:
    """Scores of a model that searches the gallery with the test images, or the test images with each other."""
    return evaluate(
        embed_images(config, model, test, mask, progress=progress),
        test.labels,
        None if gallery is None else embed_images(config, model, gallery, mask, progress=progress),
        None if gallery is None else gallery.labels,
        ks=config.ks,
        with_nmi=config.nmi,
        seed=config.seed,
    )
