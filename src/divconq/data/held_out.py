"""Hold out validation classes, drop classes with a single image, and take a part of the training images."""

import torch
from jaxtyping import Int64
from torch import Tensor

from divconq.data.dataset import ImageSet, subset


def drop_singletons(images: ImageSet) -> ImageSet:
    """Return the images whose class has at least two images."""
    counts = images.labels.bincount()
    return subset(images, counts[images.labels] > 1)


def hold_out(
    images: ImageSet, classes: int, *, seed: int, whole_groups: bool = False
) -> tuple[ImageSet, ImageSet]:
    """Split off ``classes`` random classes. Return the remaining images and the held-out images.

    With ``whole_groups``, whole super-categories are held out, with at most ``classes`` classes in total, so no
    related class remains in the training set.
    """
    if classes > len(images.names) - 2:
        raise ValueError(
            f"val_classes must leave at least two classes to train on: at most {len(images.names) - 2} of "
            f"{len(images.names)}, got {classes}"
        )
    generator = torch.Generator().manual_seed(seed)
    if whole_groups:
        drawn = _draw_groups(images, classes, generator)
    else:
        drawn = torch.randperm(len(images.names), generator=generator)[:classes]
    held = torch.isin(images.labels, drawn)
    return subset(images, ~held), subset(images, held)


def thin_out(
    images: ImageSet, classes: int | None = None, per_class: int | None = None, *, seed: int
) -> ImageSet:
    """Return the images of ``classes`` random classes, with at most ``per_class`` random images of each.

    None takes all of them.

    >>> from divconq.data.dataset import InMemory
    >>> store = InMemory(torch.zeros(12, 8, 8, 3, dtype=torch.uint8))
    >>> twelve = ImageSet(store, torch.arange(12) // 4, ("a", "b", "c"), tuple("abcdefghijkl"))
    >>> thin_out(twelve, classes=2, per_class=3, seed=0).labels.tolist()
    [0, 0, 0, 1, 1, 1]
    """
    if classes is not None and classes > len(images.names):
        raise ValueError(
            f"train_classes must be at most the number of training classes, {len(images.names)}, got {classes}; "
            "lower --train-classes or leave it out"
        )
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randperm(len(images.names), generator=generator)[:classes]
    keep = torch.isin(images.labels, drawn)
    if per_class is not None:
        order = torch.randperm(len(images), generator=generator)
        by_class = order[images.labels[order].argsort(stable=True)]
        counts = images.labels.bincount(minlength=len(images.names))
        first = counts.cumsum(0) - counts
        rank = torch.empty_like(order)
        rank[by_class] = torch.arange(len(images)) - first[images.labels[by_class]]
        keep &= rank < per_class
    return subset(images, keep)


def _draw_groups(images: ImageSet, classes: int, generator: torch.Generator) -> Int64[Tensor, " c"]:
    """Return the classes of random groups: visit the groups in random order, take each that still fits."""
    if images.groups is None:
        raise ValueError("val_groups needs super-categories, and the data has none; use --no-val-groups")
    group_of = torch.zeros(len(images.names), dtype=torch.int64)
    group_of[images.labels] = images.groups
    groups, sizes = group_of.unique(return_counts=True)
    drawn, count = [], 0
    for g in torch.randperm(len(groups), generator=generator).tolist():
        if count + int(sizes[g]) <= classes:
            drawn.append(int(groups[g]))
            count += int(sizes[g])
    if not drawn:
        raise ValueError(
            f"val_classes must be at least {int(sizes.min())}, the number of classes in the smallest "
            f"super-category, to hold out a whole one, got {classes}"
        )
    return torch.isin(group_of, torch.tensor(drawn)).nonzero().flatten()
