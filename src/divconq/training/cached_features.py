"""The features of all images by a frozen backbone, computed once and cached in a file.

A run that trains only the head sees each image in its test view, without augmentation. The file is in the cache
directory and is named for everything that the features depend on: the weights of the backbone, its settings and the
content of every image. So runs with other heads, losses or splits of the same images share it.
"""

import hashlib
import json
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from divconq.checks import first_line
from divconq.config import Config
from divconq.data import Dataset, ImageSet
from divconq.data.images.cache_files import exclusive, print_status
from divconq.data.images.cache_reuse import FORMAT as PIXELS
from divconq.data.images.contents import image_fingerprints
from divconq.data.images.fingerprints import cache_folder
from divconq.data.split_record import SplitRecord
from divconq.io.atomic import write_atomically
from divconq.io.safetensors_files import read_safetensors
from divconq.model import Embedder
from divconq.training.datasets import change_sets
from divconq.training.embedding import backbone_features
from divconq.training.stored_features import StoredFeatures

FORMAT = "divconq features 1"
SETTINGS = (
    "backbone",
    "pooling",
    "image_size",
    "resize",
    "decode_size",
)  # the settings that features depend on
REMEDY = "set DIVCONQ_CACHE to a folder with room, or add --no-cache to compute the features at every start"


Read: TypeAlias = Callable[[Config, Dataset, ImageSet | None, torch.device], tuple[Dataset, ImageSet | None]]


def read_features(
    config: Config,
    network: Embedder,
    backbone: str,
    data: Dataset,
    validation: ImageSet | None,
    device: torch.device,
    read: Read,
) -> tuple[Dataset, ImageSet | None]:
    """Return the dataset and the held-out images with stored features in place of images.

    If the features are not in the cache, ``read`` decodes the images and the network computes them.
    """

    def compute() -> list[Tensor]:
        decoded, held_out = read(config, data, validation, device)
        model = network.to(device).to(memory_format=torch.channels_last)
        sets = [
            images
            for images in (decoded.train, held_out, decoded.test, decoded.gallery)
            if images is not None
        ]
        print_status(f"computing the features of {sum(map(len, sets)):,} images, once")
        seen = config.data
        return [
            backbone_features(
                model,
                images,
                size=seen.image_size,
                resize=seen.resize,
                decode_size=seen.decode_size,
                progress="features",
            )
            for images in sets
        ]

    return change_sets(
        data, validation, lambda sets: stored_features(config, backbone, sets, compute, device)
    )


def stored_features(
    config: Config,
    backbone: str,
    sets: Sequence[ImageSet],
    compute: Callable[[], Sequence[Float[Tensor, "_ c"]]],
    device: torch.device,
) -> list[ImageSet]:
    """Return the image sets with the features of their images on ``device`` in place of the images.

    ``backbone`` is the ``backbone_fingerprint`` of the network. ``compute()`` returns the features of each set; it is
    called if they are not in the cache. With several processes on a machine, one of them computes the features and
    the others wait for the file.
    """
    marks = [[mark or path for mark, path in zip(image_fingerprints(s), s.paths, strict=True)] for s in sets]
    distinct = sorted({mark for some in marks for mark in some})
    row = {mark: number for number, mark in enumerate(distinct)}
    rows = [torch.tensor([row[mark] for mark in some]) for some in marks]

    def table() -> Float[Tensor, "m c"]:
        parts = compute()
        made = parts[0].new_empty(len(distinct), parts[0].shape[1])
        for index, part in zip(rows, parts, strict=True):
            made[index] = part
        return made

    features = _cached(_file(config, backbone, distinct), table) if config.runtime.cache else table()
    return [
        replace(images, store=StoredFeatures(features[index].to(device)))
        for images, index in zip(sets, rows, strict=True)
    ]


def backbone_fingerprint(network: Embedder) -> str:
    """Return a hash of the weights of the backbone and of the colour normalisation before it.

    >>> from divconq.model import SmallNet
    >>> backbone_fingerprint(Embedder(SmallNet(), 160, 8)) == backbone_fingerprint(Embedder(SmallNet(), 160, 8))
    False
    """
    parts = {**network.backbone.state_dict(), "divconq.mean": network.mean, "divconq.std": network.std}
    digest = hashlib.sha256()
    for name, value in parts.items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(_bytes(value))
    return digest.hexdigest()


def check_backbone_of_run(config: Config, network: Embedder, record: SplitRecord | None = None) -> str:
    """Return the ``backbone_fingerprint`` of a run that trains only the head.

    With the ``record`` of a run that is resumed, raise ValueError if its head was trained on the features of another
    backbone. Without one, warn if the backbone has random weights.
    """
    backbone = backbone_fingerprint(network)
    if record is not None and record.backbone not in (None, backbone):
        raise ValueError(
            "the weights of the backbone, or its mean and std, have changed since the start of the run, whose head is "
            "trained on features of the former weights; give these with --backbone-weights, or start a new run"
        )
    if record is None and not config.model.pretrained and config.model.backbone_weights is None:
        warnings.warn(
            "trained is head, but the backbone has random weights, so its features say little about the images; give "
            "weights with --backbone-weights FILE.safetensors or --pretrained",
            stacklevel=2,
        )
    return backbone


def _file(config: Config, backbone: str, distinct: Sequence[str]) -> Path:
    settings = config.settings()
    content = [FORMAT, PIXELS, backbone, *(settings[name] for name in SETTINGS), *distinct]
    return cache_folder() / f"{hashlib.sha256(json.dumps(content).encode()).hexdigest()}.features"


def _cached(file: Path, compute: Callable[[], Float[Tensor, "m c"]]) -> Float[Tensor, "m c"]:
    """Return the features in ``file``. If there are none, or if the file is damaged, compute and write them."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.with_suffix(".lock").touch()
    except OSError as error:
        raise ValueError(f"the cache in {file.parent} cannot be used ({error}); {REMEDY}") from error
    with exclusive(file.with_suffix(".lock")):
        if (stored := _read(file)) is not None:
            return stored
        for unfinished in file.parent.glob(f".{file.name}.*.tmp"):  # of a process that was killed
            unfinished.unlink()
        features = compute()
        try:
            write_atomically(file, lambda path: _write(path, features))
        except Exception as error:  # for example a full disk; safetensors raises errors of its own
            warnings.warn(
                f"the features could not be cached ({first_line(error)}), so the next start computes them again; "
                f"{REMEDY}",
                stacklevel=2,
            )
        return features


def _read(file: Path) -> Float[Tensor, "m c"] | None:
    """Return the features in a file; None if there is no file or, with a warning, if it is damaged."""
    if not file.exists():
        return None
    with suppress(ValueError):
        content, about = read_safetensors(file)
        features = content.get("features")
        if features is not None and about.get("sum") == _sum(features):
            return features
    warnings.warn(f"{file} is damaged; the features are computed again", stacklevel=2)
    return None


def _write(path: Path, features: Float[Tensor, "m c"]) -> None:
    from safetensors.torch import save_file

    save_file({"features": features}, path, {"format": FORMAT, "sum": _sum(features)})


def _sum(features: Tensor) -> str:
    return hashlib.sha256(str(tuple(features.shape)).encode() + _bytes(features)).hexdigest()


def _bytes(x: Tensor) -> memoryview:
    array: Any = x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return memoryview(array)
