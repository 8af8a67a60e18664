"""The number of clusters that the training images allow, checked before training."""

import warnings
from typing import Literal, TypeAlias

from jaxtyping import Int64
from torch import Tensor

from divconq.config import Config
from divconq.division.usable import most_clusters

Way: TypeAlias = Literal["keep", "check", "lower"]


def fit_k_max(config: Config, labels: Int64[Tensor, " n"], way: Way) -> Config:
    """Return the config with a ``k_max`` that the training images allow.

    ``check`` raises ValueError if no division can make all ``k_max`` clusters usable, and warns if this takes classes
    that are spread over several clusters. ``lower`` takes the largest number of clusters for which classes can stay
    whole, with one warning. ``keep`` changes nothing: a resumed run goes on as it began.
    """
    k_max = config.max_clusters
    classes = int((labels.bincount() >= 2).sum())
    whole = 1 << max(0, (classes // 2).bit_length() - 1)
    if way == "keep" or k_max <= max(1, whole):
        return config
    short = f"{classes} training classes have two or more images, and a cluster needs two of them"
    if way == "lower":
        warnings.warn(f"k_max is {whole} instead of {k_max}: {short}; set --k-max to choose it", stacklevel=2)
        return config.replace(k_max=whole)
    most = most_clusters(labels)
    if k_max > most:
        raise ValueError(
            f"k_max must be at most {most}, got {k_max}: a cluster needs two classes with two images each, and the "
            f"{len(labels)} training images of {len(labels.unique())} classes are too few; use --k-max {most}"
        )
    warnings.warn(
        f"k_max is {k_max}, but {short}, so some clusters may never be usable; lower --k-max to {whole}",
        stacklevel=2,
    )
    return config
