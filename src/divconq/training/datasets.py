"""The data that a config names: what to train on, to validate on and to search, checked."""

from dataclasses import replace

import torch

from divconq.accel.device import threads
from divconq.config import Config
from divconq.data import Dataset, ImageSet, drop_singletons, hold_out, open_dataset
from divconq.data.batches.sampler import plan_epoch
from divconq.data.batches.views import stored_side
from divconq.training.scoring import check_test_images


def open_data(config: Config) -> tuple[Dataset, ImageSet | None]:
    """The dataset, with the classes to validate on split off its training classes."""
    data = open_dataset(
        config.data.name,
        root=config.data.root,
        size=stored_side(config.data.resize),
        test_classes=config.data.test_classes,
        workers=threads(config.runtime.workers),
        seed=config.optimisation.seed,
    )
    train, validation = data.train, None
    if config.data.val_classes:
        train, validation = hold_out(
            train, config.data.val_classes, seed=config.optimisation.seed, whole_groups=config.data.val_groups
        )
    alone = (train.labels.bincount() == 1).nonzero().flatten().tolist()
    if alone and config.data.singletons == "refuse":
        some = ", ".join(repr(train.names[label]) for label in alone[:3])
        raise ValueError(
            f"{len(alone)} training classes have one image only ({some}{', ...' if len(alone) > 3 else ''}): nothing "
            "can be learned to match it; add images, or choose --singletons drop or --singletons keep"
        )
    if alone and config.data.singletons == "drop":
        train = drop_singletons(train)
    if config.division.k_max > len(train):
        raise ValueError(
            f"k_max must be at most the number of training images, {len(train)}, got {config.division.k_max}; "
            "lower --k-max"
        )
    if config.division.strategy == "labels" and config.division.k_max > 1 and train.groups is None:
        raise ValueError(
            f"division 'labels' needs super-categories, and {config.data.name!r} has none; use --division progressive"
        )
    check_test_images(data, config.evaluation.ks, config.evaluation.same_camera)
    whole = torch.zeros_like(train.labels)
    plan_epoch(
        train.labels,
        whole,
        1,
        batch=config.optimisation.batch,
        per_class=config.optimisation.per_class,
        seed=config.optimisation.seed,
        epoch=0,
    )
    return replace(data, train=train), validation
