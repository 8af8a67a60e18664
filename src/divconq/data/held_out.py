"""Hold out validation classes, and drop classes with a single image."""

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
