"""Everything a run needs, built from its config and checked before a single file is written."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from divconq.accel.device import pick_device
from divconq.accel.folding import fold_batchnorm_
from divconq.accel.graphs import load_compiler, start_compiler
from divconq.config import Config
from divconq.data import Dataset, ImageSet
from divconq.data.batches.augmentation import Augmentation, augmentation
from divconq.data.images.cache import cached
from divconq.data.images.files import check_readable
from divconq.data.images.placement import resident
from divconq.data.images.workers import meanwhile
from divconq.distributed.collectives import share_batchnorm, size
from divconq.losses import make_loss
from divconq.masks import Masks
from divconq.model import Embedder, import_file, make_model
from divconq.objective import Objective
from divconq.training.datasets import open_data
from divconq.training.embedding import Forward, fast_features
from divconq.training.optimizer import make_optimizer
from divconq.training.scoring import check_test_images, embed_images, search_scores, train_recall

KINDS = 64  # of each function that may be compiled in one process, for runs with other settings


@dataclass(frozen=True)
class Job:
    """The parts that take part in training."""

    config: Config
    device: torch.device
    train: ImageSet
    validation: ImageSet | None
    test: ImageSet
    gallery: ImageSet | None
    gallery_draws: int
    changes: Augmentation
    model: Embedder
    masks: Masks
    loss: nn.Module
    objective: Objective
    optimizer: Optimizer
    forward: Forward | None  # a fast form of ``see_features``, on a GPU

    @property
    def fast(self) -> bool:
        """Whether the step is to be compiled and captured."""
        return self.forward is not None

    def embed(self, images: ImageSet, *, features: bool = False) -> Tensor:
        """All images as unit vectors of the conquered space, or as the backbone's features."""
        mask = None if features else self.masks.conquer().detach()
        return embed_images(self.config, self.model, images, mask, features=features, fast=self.forward)

    def scores(self, train: Tensor | None = None) -> dict[str, float]:
        """How well the conquered space searches the test classes and those held out (``val_...``).

        With the training images, as ``embed`` gives them, also how well they find each other.
        """
        mask = self.masks.conquer().detach()
        scores = search_scores(
            self.config,
            self.model,
            mask,
            self.test,
            self.gallery,
            gallery_draws=self.gallery_draws,
            fast=self.forward,
        )
        if self.validation is not None:
            held = search_scores(self.config, self.model, mask, self.validation, fast=self.forward)
            scores |= {f"val_{name}": score for name, score in held.items()}
        if train is not None:
            scores |= train_recall(self.config, train, self.train)
        return scores


def prepare(config: Config) -> Job:
    """Open the data and build network, masks, loss and optimiser; bad input ends here."""
    device = pick_device(config.runtime.device)
    if config.model.import_file is not None:
        import_file(config.model.import_file)
    data, validation = open_data(config)
    if validation is not None:
        held = replace(data, test=validation, gallery=None)
        check_test_images(held, config.evaluation.ks, config.evaluation.same_camera, called="held-out")
    _check_shares(config.optimisation.batch, data, validation)
    compiles = _compiles(config, device)
    # One while the images to train on are decoded, one while those to test on are.
    with meanwhile(*(start_compiler, load_compiler) if compiles else ()):
        data, validation = _read(config, data, validation, device)
    torch.manual_seed(config.optimisation.seed)
    model = make_model(
        config.model.backbone,
        config.model.dim,
        pretrained=config.model.pretrained,
        weights=config.model.backbone_weights,
        pooling=config.model.pooling,
        dropout=config.model.dropout,
        freeze_batchnorm=config.model.freeze_batchnorm,
    )
    if config.model.freeze_batchnorm and compiles:
        side = config.data.image_size  # one image, on the CPU: a GPU would set up its libraries first
        fold_batchnorm_(model, torch.linspace(0, 1, 3 * side * side).view(1, 3, side, side))
    model = model.to(device)
    if not config.model.freeze_batchnorm:
        model.backbone = share_batchnorm(model.backbone, device)
    model = model.to(memory_format=torch.channels_last)
    masks = Masks(config.model.dim, config.division.k_max, config.masks.kind, config.masks.conquer)
    loss = make_loss(
        config.loss.name,
        config.loss.args,
        num_classes=len(data.train.names),
        dim=config.model.dim,
        miner=config.loss.miner,
        miner_arguments=config.loss.miner_args,
    )
    objective = Objective(loss, masks, config.masks.overlap_weight).to(device)
    optimizer = make_optimizer(
        model,
        masks,
        loss,
        lr=config.optimisation.lr,
        weight_decay=config.optimisation.weight_decay,
        mask_lr_scale=config.masks.lr_scale,
        mask_weight_decay=config.masks.weight_decay,
        loss_lr_scale=config.loss.lr_scale,
        norm_weight_decay=config.optimisation.norm_weight_decay,
        head_lr_scale=config.optimisation.head_lr_scale,
    )
    return Job(
        config,
        device,
        data.train,
        validation,
        data.test,
        data.gallery,
        data.gallery_draws,
        augmentation(config.data.augmentation, config.data.crop, config.data.crop_scale),
        model,
        masks,
        loss,
        objective,
        optimizer,
        _fast(model) if compiles else None,
    )


def _read(
    config: Config, data: Dataset, validation: ImageSet | None, device: torch.device
) -> tuple[Dataset, ImageSet | None]:
    """The images decoded, once, and near the device; without a cache only seen to be readable."""
    if config.runtime.cache:
        data = replace(
            data,
            train=cached(data.train),
            test=cached(data.test),
            gallery=data.gallery and cached(data.gallery),
        )
        validation = validation and cached(validation)
    else:
        check_readable(
            images.pixels
            for images in (data.train, validation, data.test, data.gallery)
            if images is not None
        )
    return _resident(data, validation, device)


def _check_shares(batch: int, data: Dataset, validation: ImageSet | None) -> None:
    """Refuse more processes than there are images to share out."""
    sets = (data.train, validation, data.test, data.gallery)
    fewest = min(batch, *(len(images) for images in sets if images is not None))
    if fewest < size():
        raise ValueError(
            f"{size()} processes share the images of a batch and of every split, got {fewest} to share; start at "
            f"most {fewest}, or raise --batch"
        )


def _compiles(config: Config, device: torch.device) -> bool:
    """Whether to compile and capture; BatchNorm that talks to other processes cannot be."""
    return (
        config.runtime.compile == "auto"
        and device.type == "cuda"
        and (config.model.freeze_batchnorm or size() == 1)
    )


def _resident(
    data: Dataset, validation: ImageSet | None, device: torch.device
) -> tuple[Dataset, ImageSet | None]:
    """The images in the memory of a GPU, as far as there is room: those to train on first."""
    sets = (data.train, validation, data.test, data.gallery)
    moved = iter(resident([images for images in sets if images is not None], device))
    train, validation, test, gallery = (images and next(moved) for images in sets)
    assert train is not None
    assert test is not None
    return replace(data, train=train, test=test, gallery=gallery), validation


def _fast(model: Embedder) -> Forward:
    """What embeds images, made fast; what earlier runs of this process compiled is used again where it fits."""
    import torch._dynamo.config

    torch._dynamo.config.cache_size_limit = max(KINDS, torch._dynamo.config.cache_size_limit)
    return fast_features(model)
