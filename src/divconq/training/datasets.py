"""Open, split and check the dataset of a run."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from divconq.accel.device import threads
from divconq.config import Config
from divconq.data import Dataset, ImageSet, drop_singletons, hold_out, open_dataset, thin_out
from divconq.data.batches.sampler import plan_epoch
from divconq.data.batches.views import stored_side
from divconq.data.split_record import SPLITS, SplitRecord
from divconq.division import DIVISIONS
from divconq.training.mixture import check_images
from divconq.training.recorded_split import recorded_images
from divconq.training.scoring import check_test_images

SPLIT_SETTINGS = ("test_classes", "val_classes", "val_groups", "singletons", "train_classes", "train_images")


def open_data(
    config: Config, record: SplitRecord | None = None, *, accept_changes: bool = False
) -> tuple[Dataset, ImageSet | None]:
    """Return the dataset without the held-out training classes, and the images of these classes or None.

    With the ``record`` of a run, the split is that of the run.
    """
    data = open_whole(config)
    if record is None:
        data, validation = split_data(config, data)
    else:
        _check_settings(config, record)
        found = recorded_images(record, data, SPLITS, accept_changes=accept_changes)
        data = replace(data, train=found["train"], test=found["test"], gallery=found.get("gallery"))
        validation = found.get("val")
    _check_training(config, data.train)
    check_test_images(data, config.evaluation.ks, config.evaluation.same_camera)
    return data, validation


def open_whole(config: Config) -> Dataset:
    """Return the dataset of a config with all of its images, as its source splits it or with a split drawn anew."""
    return open_dataset(
        config.data.name,
        root=config.data.root,
        size=stored_side(config.data.decoded),
        test_classes=config.data.test_classes,
        workers=threads(config.runtime.workers),
        seed=config.optimisation.seed,
    )


def make_record(config: Config, data: Dataset, validation: ImageSet | None) -> SplitRecord:
    """Return the record of a split, with the settings that it was made with."""
    return SplitRecord.of(data, validation, _split_settings(config))


def _split_settings(config: Config) -> dict[str, Any]:
    settings = config.settings()
    return {name: settings[name] for name in SPLIT_SETTINGS}


def _check_settings(config: Config, record: SplitRecord) -> None:
    now = _split_settings(config)
    for name, before in record.settings.items():
        if name in now and now[name] != before:
            raise ValueError(
                f"the split is part of the run: {name} must stay {before}, got {now[name]}; "
                "start a new run for another split"
            )


def split_data(config: Config, data: Dataset) -> tuple[Dataset, ImageSet | None]:
    """Hold out training classes, thin out the others, and refuse or drop classes with a single image."""
    train, validation = data.train, None
    if config.data.val_classes:
        train, validation = hold_out(
            train, config.data.val_classes, seed=config.optimisation.seed, whole_groups=config.data.val_groups
        )
    if config.data.train_classes is not None or config.data.train_images is not None:
        train = thin_out(
            train, config.data.train_classes, config.data.train_images, seed=config.optimisation.seed
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
    return replace(data, train=train), validation


def _check_training(config: Config, train: ImageSet) -> None:
    """Raise ValueError if the training images cannot be divided or planned as the settings say."""
    if config.division.k_max > len(train):
        raise ValueError(
            f"k_max must be at most the number of training images, {len(train)}, got {config.division.k_max}; "
            "lower --k-max"
        )
    check_images(config, len(train))
    needs_groups = DIVISIONS[config.division.strategy].needs_groups
    if needs_groups and config.max_clusters > 1 and train.groups is None:
        raise ValueError(
            f"division {config.division.strategy!r} needs super-categories, and {config.data.name!r} has none; "
            "use --division progressive"
        )
    plan_epoch(
        train.labels,
        torch.zeros_like(train.labels),
        1,
        batch=config.optimisation.batch,
        per_class=config.optimisation.per_class,
        class_sampling=config.optimisation.class_sampling,
        seed=config.optimisation.seed,
        epoch=0,
    )


def change_sets(
    data: Dataset, validation: ImageSet | None, change: Callable[[list[ImageSet]], list[ImageSet]]
) -> tuple[Dataset, ImageSet | None]:
    """Return the dataset and the held-out images with each image set replaced by ``change`` of all of them.

    ``change`` takes the image sets that there are, training images first, and returns as many.

    >>> from divconq.data import open_dataset
    >>> data = open_dataset("demo")
    >>> change_sets(data, None, lambda sets: sets[::-1])[0].train is data.test
    True
    """
    sets = (data.train, validation, data.test, data.gallery)
    changed = iter(change([images for images in sets if images is not None]))
    train, validation, test, gallery = (images and next(changed) for images in sets)
    assert train is not None
    assert test is not None
    return replace(data, train=train, test=test, gallery=gallery), validation
