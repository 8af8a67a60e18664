"""Build the parts of a run from a config. All input is checked before a file is written."""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.optim import Optimizer

from divconq.accel.device import pick_device, uses_bf16
from divconq.accel.folding import fold_batchnorm_
from divconq.accel.graphs import load_compiler, start_compiler
from divconq.config import Config
from divconq.data import Dataset, ImageSet
from divconq.data.batches.augmentation import Augmentation, make_augmentation
from divconq.data.images.cache import cached
from divconq.data.images.files import check_readable
from divconq.data.images.placement import move_to_device
from divconq.data.images.workers import background_work
from divconq.data.split_record import SplitRecord
from divconq.distributed import is_first, size
from divconq.distributed.collectives import share_batchnorm
from divconq.divide_and_conquer import DivideAndConquer
from divconq.losses.memory import check_memory
from divconq.model import Embedder, check_backbone, import_file, make_model
from divconq.training.agreement import data_fingerprints
from divconq.training.averaging import WeightAverages
from divconq.training.base_loss import check_base_loss, make_base_loss
from divconq.training.cached_features import check_backbone_of_run, read_features
from divconq.training.cluster_count import Way, fit_k_max
from divconq.training.datasets import change_sets, make_record, open_data
from divconq.training.embedding import Forward, fast_features
from divconq.training.learning_rate import LearningRate
from divconq.training.mixture import check_scikit_learn, without_subspaces
from divconq.training.optimizer import make_optimizer
from divconq.training.scoring import check_test_images, embed_images, search_scores, train_recall
from divconq.training.step import TrainingStep

ALGORITHM_SETTINGS = (
    *("dim", "batch", "per_class", "class_sampling", "seed"),
    *("division", "k_max", "divide_every", "cluster_order", "cluster_steps", "epoch_length"),
    *("freeze_backbone_epochs", "finetune_from"),
    *("masks", "overlap_weight", "mask_weight_decay", "mask_split_noise", "mask_reset", "conquer"),
    "mask_activation",
    *("memory", "memory_weight"),
)  # arguments of DivideAndConquer that have the name of a setting
COMPILED_VARIANTS = 64  # per function and process, enough for several runs with different settings


@dataclass(frozen=True)
class Job:
    """The parts of a run: data, network, algorithm, optimiser."""

    config: Config
    device: torch.device
    train: ImageSet
    validation: ImageSet | None
    test: ImageSet
    gallery: ImageSet | None
    gallery_draws: int
    augmentation: Augmentation
    model: Embedder
    dc: DivideAndConquer
    optimizer: Optimizer
    learning_rate: LearningRate
    averages: WeightAverages  # of the network and the masks; everything that embeds uses them
    forward: Forward | None  # the compiled embedding pass, on a GPU
    record: SplitRecord | None  # of the images; the first process has it
    fingerprints: dict[str, object]  # of the data, to compare several processes

    @property
    def fast(self) -> bool:
        """Return whether the step is compiled and captured."""
        return self.forward is not None

    def step(self) -> TrainingStep:
        """Return the training step."""
        bf16 = uses_bf16(self.config.runtime.precision, self.device)
        parts = (self.model, self.dc.objective, self.optimizer)
        return TrainingStep(*parts, bf16=bf16, fast=self.fast, averages=self.averages)

    def embed(self, images: ImageSet, *, features: bool = False) -> Tensor:
        """Return all images as unit vectors of the conquered space, or as the features of the backbone."""
        with self.averages.applied():
            mask = None if features else self.dc.masks.conquer().detach()
            return embed_images(self.config, self.model, images, mask, features=features, fast=self.forward)

    def embed_to_divide(self, embeddings: Tensor | None = None) -> Tensor | None:
        """Return the vectors that the next division clusters. ``embeddings`` saves an embedding pass."""
        if not self.dc.needs_embeddings:
            return None
        if self.config.division.cluster_on == "features":
            return self.embed(self.train, features=True)
        return self.embed(self.train) if embeddings is None else embeddings

    def trains_backbone(self, epoch: int) -> bool:
        """Return whether the backbone is trained in ``epoch``."""
        return self.config.model.trained == "whole" and not self.dc.freezes_backbone(epoch)

    def evaluates(self, epoch: int) -> bool:
        """Return whether the model is evaluated after ``epoch``."""
        done = epoch + 1
        return done % self.config.evaluation.every == 0 or done == self.config.optimisation.epochs

    def scores(self, train: Tensor | None = None) -> dict[str, float]:
        """Return the retrieval scores of the conquered space on the test classes and held-out classes (``val_...``).

        If ``train``, the embeddings of the training images, is given, add ``train_recall@1``.
        """
        with self.averages.applied():
            mask = self.dc.masks.conquer().detach()
            search = partial(search_scores, self.config, self.model, mask, fast=self.forward)
            scores = search(self.test, self.gallery, gallery_draws=self.gallery_draws)
            if self.validation is not None:
                held_out = search(self.validation)
                scores |= {f"val_{name}": score for name, score in held_out.items()}
        if train is not None:
            scores |= train_recall(self.config, train, self.train)
        return scores


def check_names(config: Config) -> None:
    """Raise ValueError for a name, an argument or a file of the config that cannot be used. Opens no data.

    Runs the file of ``--import`` first, because it may register a backbone or a loss.
    """
    settings = config.model
    if settings.head == "clml":
        check_scikit_learn()
    if settings.import_file is not None:
        import_file(settings.import_file)
    make_augmentation(config.data.augmentation, config.data.crop, config.data.crop_scale)
    check_base_loss(config)
    check_backbone(
        settings.backbone,
        settings.pooling,
        pretrained=settings.pretrained,
        weights=settings.backbone_weights,
    )


def prepare(
    config: Config, record: SplitRecord | None = None, *, accept_changes: bool = False, k_max: Way = "keep"
) -> Job:
    """Open the data and build network, algorithm and optimiser. Raise ValueError for bad input.

    With the ``record`` of a run, its images and their split are used again. ``accept_changes`` allows images that have
    changed since then. ``k_max`` tells whether to ``keep``, ``check`` or ``lower`` the number of clusters, see
    ``fit_k_max``.

    What is checked fast comes first: names and small files, then the list of images, then the weights of the
    backbone. Only then are the images decoded, which may take long.
    """
    device = pick_device(config.runtime.device)
    check_names(config)
    config = without_subspaces(config)
    data, validation = open_data(config, record, accept_changes=accept_changes)
    check_memory(config.loss.memory, len(data.train))
    config = fit_k_max(config, data.train.labels, k_max)
    if validation is not None:
        alone = replace(data, test=validation, gallery=None)
        check_test_images(alone, config.evaluation.ks, config.evaluation.same_camera, called="held-out")
    _check_shares(config.optimisation.batch, data, validation)
    fingerprints = data_fingerprints(data, validation) if size() > 1 else {}
    compiles = _compiles(config, device)
    torch.manual_seed(config.optimisation.seed)
    network = _network(config)
    # The compiler loads in the background while images are decoded.
    with (
        torch.random.fork_rng(devices=()),
        background_work(*(start_compiler, load_compiler) if compiles else ()),
    ):
        images, held_out = data, validation
        backbone = check_backbone_of_run(config, network, record) if config.model.trained == "head" else None
        if backbone is None:
            data, validation = _read(config, data, validation, device)
        else:
            data, validation = read_features(config, network, backbone, data, validation, device, _read)
        if record is None and is_first():
            record = make_record(config, images, held_out)  # after decoding, when the files are in memory
            record = replace(record, backbone=backbone)
    model = _on_device(config, network, device, compiles)
    dc, optimizer = _algorithm(config, data.train, model, device)
    return Job(
        config,
        device,
        data.train,
        validation,
        data.test,
        data.gallery,
        data.gallery_draws,
        make_augmentation(config.data.augmentation, config.data.crop, config.data.crop_scale),
        model,
        dc,
        optimizer,
        LearningRate(optimizer, config.optimisation),
        WeightAverages(config.optimisation.ema, {"model": model, "masks": dc.masks}),
        _fast_forward(model) if compiles else None,
        record,
        fingerprints,
    )


def _network(config: Config) -> Embedder:
    """Return the network with its first weights, on the CPU."""
    settings = config.model
    return make_model(
        settings.backbone,
        settings.dim,
        pretrained=settings.pretrained,
        weights=settings.backbone_weights,
        pooling=settings.pooling,
        head=settings.head,
        components=config.components,
        dropout=settings.dropout,
        mean=settings.mean,
        std=settings.std,
        freeze_batchnorm=settings.freeze_batchnorm,
    )


def _on_device(config: Config, model: Embedder, device: torch.device, compiles: bool) -> Embedder:
    """Return the network on its device. If it is compiled, frozen BatchNorm is folded into the convolutions."""
    if config.model.trained == "head":
        model.backbone.requires_grad_(False)
        return model.to(device).to(memory_format=torch.channels_last)
    frozen = config.model.freeze_batchnorm
    if frozen and compiles:
        side = config.data.image_size  # one image on the CPU, because the first call on a GPU is slow
        fold_batchnorm_(model, torch.linspace(0, 1, 3 * side * side).view(1, 3, side, side))
    model = model.to(device)
    if not frozen:
        model.backbone = share_batchnorm(model.backbone, device)
    return model.to(memory_format=torch.channels_last)


def _algorithm(
    config: Config, train: ImageSet, model: Embedder, device: torch.device
) -> tuple[DivideAndConquer, Optimizer]:
    """Return the algorithm with its loss, and the optimiser."""
    settings, training = config.settings(), config.optimisation
    loss = make_base_loss(config, classes=len(train.names)).to(device)
    optimizer = make_optimizer(
        model,
        lr=training.lr,
        weight_decay=training.weight_decay,
        norm_weight_decay=training.norm_weight_decay,
        head_lr_scale=training.head_lr_scale,
        kind=training.optimizer,
    )
    dc = DivideAndConquer(
        loss,
        train.labels,
        optimizer,
        groups=train.groups,
        mask_lr=training.lr * config.masks.lr_scale,
        loss_lr=training.lr * config.loss.lr_scale,
        **{name: settings[name] for name in ALGORITHM_SETTINGS} | {"k_max": config.max_clusters},
    )
    return dc, optimizer


def _read(
    config: Config, data: Dataset, validation: ImageSet | None, device: torch.device
) -> tuple[Dataset, ImageSet | None]:
    """Decode all images and move them to a GPU if they fit. Without a cache, only check that they are readable."""
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
            images.store for images in (data.train, validation, data.test, data.gallery) if images is not None
        )
    return _resident(data, validation, device)


def _check_shares(batch: int, data: Dataset, validation: ImageSet | None) -> None:
    """Raise ValueError if there are more processes than images to share."""
    sets = (data.train, validation, data.test, data.gallery)
    fewest = min(batch, *(len(images) for images in sets if images is not None))
    if fewest < size():
        raise ValueError(
            f"{size()} processes share the images of every batch and split, and there are only {fewest} to share; "
            f"start at most {fewest} processes, or raise --batch"
        )


def _compiles(config: Config, device: torch.device) -> bool:
    """Return whether to compile and capture. BatchNorm that synchronises across processes cannot be captured."""
    alone = config.model.freeze_batchnorm or size() == 1
    return config.runtime.compile == "auto" and device.type == "cuda" and alone


def _resident(
    data: Dataset, validation: ImageSet | None, device: torch.device
) -> tuple[Dataset, ImageSet | None]:
    """Move the images into the memory of a GPU as far as there is room, training images first."""
    return change_sets(data, validation, lambda sets: move_to_device(sets, device))


def _fast_forward(model: Embedder) -> Forward:
    """Return the compiled embedding pass. It reuses code that this process compiled before."""
    import torch._dynamo.config

    torch._dynamo.config.cache_size_limit = max(COMPILED_VARIANTS, torch._dynamo.config.cache_size_limit)
    return fast_features(model)
