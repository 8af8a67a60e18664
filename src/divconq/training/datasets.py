"""Open, split and check the dataset of a run."""

from dataclasses import replace

import torch

from divconq.accel.device import threads
from divconq.config import Config
from divconq.data import Dataset, ImageSet, drop_singletons, hold_out, open_dataset
from divconq.data.batches.sampler import plan_epoch
from divconq.data.batches.views import stored_side
from divconq.division import DIVISIONS
from divconq.training.scoring import check_test_images


def open_data(config: Config) -> tuple[Dataset, ImageSet | None]:
    """Return the dataset without the held-out training classes, and the images of these classes or None."""
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
    single = (train.labels.bincount() == 1).nonzero().flatten().tolist()
    if single and config.data.singletons == "refuse":
        some = ", ".join(repr(train.names[label]) for label in single[:3])
        raise ValueError(
            f"{len(single)} training classes have a single image ({some}{', ...' if len(single) > 3 else ''}), "
            "which has no positive; add images, or use --singletons drop or --singletons keep"
        )
    if single and config.data.singletons == "drop":
        train = drop_singletons(train)
    if config.division.k_max > len(train):
        raise ValueError(
            f"k_max must be at most the number of training images, {len(train)}, got {config.division.k_max}; "
            "lower --k-max"
        )
    needs_groups = DIVISIONS[config.division.strategy].needs_groups
    if needs_groups and config.division.k_max > 1 and train.groups is None:
        raise ValueError(
            f"division {config.division.strategy!r} needs super-categories, and {config.data.name!r} has none; "
            "use --division progressive"
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
