"""Everything a run needs, built from its config and checked before a single file is written."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from divconq.config import Config
from divconq.data import Dataset, ImageSet, drop_singletons, hold_out, open_dataset
from divconq.data.augmentation import Augmentation, augmentation
from divconq.data.cache import cached
from divconq.data.files import check_readable
from divconq.data.protocol import count_matches, known_cameras
from divconq.data.resident import resident
from divconq.data.sampler import plan_epoch
from divconq.data.transforms import stored_side
from divconq.embed import embed, view_and_embed
from divconq.evaluation import evaluate, one_gallery_image
from divconq.folding import fold_batchnorm_
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
    gallery_draws: int
    changes: Augmentation
    model: Embedder
    masks: Masks
    loss: nn.Module
    objective: Objective
    optimizer: Optimizer
    compiled: Mapping[str, Callable[[Tensor, Tensor], Tensor]]  # of the model, up to a layer, on a GPU

    @property
    def fast(self) -> bool:
        """Whether the step is to be compiled and captured."""
        return bool(self.compiled)

    def embed(self, images: ImageSet, *, features: bool = False) -> Tensor:
        """All images as unit vectors of the conquered space, or as the backbone's features."""
        mask = None if features else self.masks.conquer().detach()
        return embed_images(self.config, self.model, images, mask, features=features, compiled=self.compiled)

    def scores(self) -> dict[str, float]:
        """How well the conquered space searches the test classes, and those held out (``val_...``)."""
        mask = self.masks.conquer().detach()
        scores = search_scores(
            self.config,
            self.model,
            mask,
            self.test,
            self.gallery,
            gallery_draws=self.gallery_draws,
            compiled=self.compiled,
        )
        if self.validation is not None:
            held = search_scores(self.config, self.model, mask, self.validation, compiled=self.compiled)
            scores |= {f"val_{name}": score for name, score in held.items()}
        return scores


def prepare(config: Config) -> Job:
    """Open the data and build network, masks, loss and optimiser; bad input ends here."""
    device = pick_device(config.device)
    if config.import_file is not None:
        import_file(config.import_file)
    data, validation = open_data(config)
    if validation is not None:
        held = replace(data, test=validation, gallery=None)
        check_test_images(held, config.ks, config.same_camera, called="held-out")
    if config.cache:
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
    data, validation = _resident(data, validation, device)
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
        data.gallery_draws,
        augmentation(config.augmentation, config.crop, config.crop_scale),
        model,
        masks,
        loss,
        objective,
        optimizer,
        _compiled(model, config) if config.compile == "auto" and device.type == "cuda" else {},
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


def _compiled(model: Embedder, config: Config) -> Mapping[str, Callable[[Tensor, Tensor], Tensor]]:
    """Fold the model's frozen BatchNorm, and compile what embeds images when it is first used."""
    if config.freeze_batchnorm:
        side = config.image_size
        fold_batchnorm_(
            model, torch.linspace(0, 1, 3 * side * side).view(1, 3, side, side).to(model.mean.device)
        )
    layers: tuple[Literal["embedding", "features"], ...] = ("embedding", "features")
    forward = partial(view_and_embed, model, size=config.image_size, resize=config.resize)
    return {layer: torch.compile(forward(layer=layer), dynamic=False) for layer in layers}


def uses_bf16(config: Config, device: torch.device) -> bool:
    """Whether the network runs in mixed precision.

    >>> uses_bf16(Config(), torch.device("cpu"))
    False
    """
    has_it = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return config.precision == "bf16" or (config.precision == "auto" and has_it)


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
        size=stored_side(config.resize),
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
    check_test_images(data, config.ks, config.same_camera)
    whole = torch.zeros_like(train.labels)
    plan_epoch(
        train.labels, whole, 1, batch=config.batch, per_class=config.per_class, seed=config.seed, epoch=0
    )
    return replace(data, train=train), validation


def check_test_images(
    data: Dataset,
    ks: tuple[int, ...],
    same_camera: Literal["drop", "keep"] = "drop",
    *,
    called: str = "test",
) -> None:
    """Refuse images that cannot be searched: fewer than the largest k, or nothing to find."""
    findable = len(data.test) - 1 if data.gallery is None else len(data.gallery)
    if findable < max(ks):
        raise ValueError(
            f"Recall@{max(ks)} needs {max(ks)} images to find, and a {called} query can find {findable}; "
            f"add {called} images or lower --ks"
        )
    if count_matches(data.test, data.gallery, same_camera=same_camera).any():
        return
    if count_matches(data.test, data.gallery, same_camera="keep").any():
        raise ValueError(
            f"no {called} image has another of its class by another camera to find, and those by the same camera are "
            "dropped; add images by other cameras, or count the same camera's with --same-camera keep"
        )
    raise ValueError(
        f"no {called} image has another of its class to find; add images to the {called} classes"
    )


def embed_images(
    config: Config,
    model: Embedder,
    images: ImageSet,
    mask: Tensor | None = None,
    *,
    features: bool = False,
    compiled: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {},
    progress: str | None = None,
) -> Tensor:
    """Unit vectors of all images, seen the way ``config`` shows test images."""
    layer: Literal["features", "embedding"] = "features" if features else "embedding"
    return embed(
        model,
        images,
        mask,
        size=config.image_size,
        resize=config.resize,
        layer=layer,
        bf16=uses_bf16(config, model.mean.device),
        compiled=compiled.get(layer),
        progress=progress,
    )


def search_scores(
    config: Config,
    model: Embedder,
    mask: Tensor | None,
    test: ImageSet,
    gallery: ImageSet | None = None,
    *,
    gallery_draws: int = 0,
    compiled: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {},
    progress: str | None = None,
) -> dict[str, float]:
    """Scores of a model that searches the gallery with the test images, or the test images with each other.

    ``reid_recall@k`` are those of galleries of one random test image per class, mean over ``gallery_draws``.
    """
    x = embed_images(config, model, test, mask, compiled=compiled, progress=progress)
    cameras = known_cameras(test, gallery) if config.same_camera == "drop" else None
    scores = evaluate(
        x,
        test.labels,
        None
        if gallery is None
        else embed_images(config, model, gallery, mask, compiled=compiled, progress=progress),
        None if gallery is None else gallery.labels,
        query_cameras=cameras and cameras[0],
        gallery_cameras=None if gallery is None else cameras and cameras[1],
        ks=config.ks,
        with_nmi=config.nmi,
        seed=config.seed,
    )
    ks = tuple(k for k in config.ks if k <= len(test.labels.unique()))
    if gallery_draws and ks:
        drawn = one_gallery_image(x, test.labels, draws=gallery_draws, seed=config.seed, ks=ks)
        scores |= {f"reid_{name}": score for name, score in drawn.items()}
    return scores
