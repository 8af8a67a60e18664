"""Checks of embeddings, labels, galleries and cameras before they are scored."""

from collections.abc import Sequence

import torch
from torch import Tensor


def check_search(
    query: Tensor,
    query_labels: Tensor,
    gallery: Tensor | None,
    gallery_labels: Tensor | None,
    ks: Sequence[int],
) -> None:
    """Raise ValueError if query and gallery do not match, or if a k is larger than the gallery."""
    check_embeddings("query", query, query_labels)
    check_gallery(gallery, gallery_labels)
    findable = len(query) - 1
    if gallery is not None and gallery_labels is not None:
        check_embeddings("gallery", gallery, gallery_labels)
        findable = len(gallery)
        if gallery.shape[1] != query.shape[1]:
            raise ValueError(
                f"query and gallery must have the same number of features, got {query.shape[1]} and "
                f"{gallery.shape[1]}; embed both with the same model"
            )
    if len(ks) == 0 or min(ks) < 1 or max(ks) > findable:
        raise ValueError(
            f"ks must lie between 1 and the {findable} images that a query can find, got {tuple(ks)}; "
            "use smaller ks or more images"
        )


def check_gallery(gallery: Tensor | None, gallery_labels: Tensor | None) -> None:
    """Raise ValueError for a gallery without labels, or labels without a gallery.

    >>> check_gallery(torch.ones(3, 2), None)
    Traceback (most recent call last):
    ValueError: gallery and gallery_labels go together, got only gallery; pass gallery_labels too
    """
    _check_both("gallery", gallery, "gallery_labels", gallery_labels)


def check_cameras(
    query: Tensor, query_cameras: Tensor | None, gallery: Tensor | None, gallery_cameras: Tensor | None
) -> None:
    """Raise ValueError if only one side has cameras, or if there is not one camera per image."""
    if gallery is None and gallery_cameras is not None:
        raise ValueError("gallery_cameras need a gallery, got none; pass query_cameras only")
    if gallery is not None:
        _check_both("query_cameras", query_cameras, "gallery_cameras", gallery_cameras)
    for name, x, cameras in (("query", query, query_cameras), ("gallery", gallery, gallery_cameras)):
        if x is not None and cameras is not None and cameras.shape != x.shape[:1]:
            raise ValueError(
                f"{name} needs one camera for each of its {len(x)} images, got shape {tuple(cameras.shape)}"
            )


def check_embeddings(name: str, x: Tensor, labels: Tensor) -> None:
    """Raise ValueError unless the embeddings are a finite matrix with one label per row."""
    if x.ndim != 2 or len(x) == 0:
        raise ValueError(f"{name} must be of shape (images, features) and not empty, got {tuple(x.shape)}")
    if labels.shape != x.shape[:1]:
        raise ValueError(
            f"{name} needs one label for each of its {len(x)} images, got shape {tuple(labels.shape)}"
        )
    bad = int((~torch.isfinite(x.detach().float())).any(1).sum())  # float32 bounds what k-means can cluster
    if bad:
        raise ValueError(
            f"{name} must be finite, got NaN, infinity or too large values in {bad} of {len(x)} rows; "
            "check the network that made it"
        )


def _check_both(first: str, one: Tensor | None, second: str, other: Tensor | None) -> None:
    if (one is None) != (other is None):
        given, missing = (first, second) if other is None else (second, first)
        raise ValueError(f"{first} and {second} go together, got only {given}; pass {missing} too")
