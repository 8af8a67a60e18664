"""Embeddings of all images of a run, cached in the run folder."""

import hashlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor

from divconq.analysis.run_record import RunRecord, Snapshot, Which
from divconq.analysis.subject import Split
from divconq.config import Config
from divconq.data.dataset import ImageSet
from divconq.data.images.contents import image_fingerprints
from divconq.division.lloyd import check_points
from divconq.io.atomic import write_atomically
from divconq.training.scoring import embed_images

FORMAT = "divconq embeddings 2"  # 1: before rotated TIFFs were read right
SETTINGS = ("backbone", "dim", "pooling", "image_size", "resize")  # the settings that f depends on


def cached_embeddings(
    record: RunRecord,
    snapshot: Snapshot,
    images: Mapping[Split, ImageSet],
    which: Which = "last",
    device: torch.device | None = None,
) -> dict[Split, Float32[Tensor, "_ d"]]:
    """Return the unit vectors f(x) / |f(x)| without masks for each split, on the CPU.

    The cache is ``analysis/embeddings-last.safetensors`` (or ``-best``) in the run folder. It is float32, so
    searches give the same ranks as the evaluation. If the weights, settings or images have changed, or the file is
    damaged, the embeddings are computed again.
    """
    file = record.folder / "analysis" / f"embeddings-{which}.safetensors"
    key = cache_key(record.config, snapshot, images)
    cached = _read(file, key)
    if cached is not None and cached.keys() == images.keys():
        return {split: cached[split] for split in images}
    model = snapshot.network.to(device or torch.device("cpu"))
    made: dict[Split, Tensor] = {}
    for split, some in images.items():
        f = embed_images(record.config, model, some, progress=f"embedding {split}").cpu()
        check_points(f)
        made[split] = f.contiguous()
    _write(file, key, made)
    return made


def cache_key(config: Config, snapshot: Snapshot, images: Mapping[Split, ImageSet]) -> str:
    """Return a hash of everything the embeddings depend on: weights, settings and images."""
    digest = hashlib.sha256(FORMAT.encode())
    for name, weight in snapshot.network.state_dict().items():
        digest.update(name.encode())
        digest.update(_bytes(weight))
    values = config.settings()
    settings = {name: values[name] for name in SETTINGS}
    if config.data.decode_size is not None:  # without it, caches of older versions stay valid
        settings["decode_size"] = config.data.decode_size
    digest.update(json.dumps(settings).encode())
    for split, some in images.items():
        digest.update(json.dumps([split, *some.paths]).encode())
        digest.update("".join(image_fingerprints(some)).encode())
    return digest.hexdigest()


def _read(file: Path, key: str) -> dict[str, Tensor] | None:
    """Return the embeddings in a file; None if it has another key, is damaged, or does not exist."""
    from safetensors import safe_open

    try:
        with safe_open(file, "pt") as opened:
            about = opened.metadata() or {}
            if about.get("key") != key:
                return None
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (no mapping)
        return tensors if about.get("sum") == _sum(tensors) else None
    except Exception:  # a missing or damaged file can raise many kinds of errors
        return None


def _write(file: Path, key: str, made: Mapping[Split, Tensor]) -> None:
    from safetensors.torch import save_file

    tensors = {str(split): f for split, f in made.items()}
    try:
        file.parent.mkdir(exist_ok=True)
        about = {"format": FORMAT, "key": key, "sum": _sum(tensors)}
        write_atomically(file, lambda path: save_file(tensors, path, about))
    except Exception as error:  # for example a full disk or a read-only folder
        warnings.warn(f"the embeddings could not be cached ({error})", stacklevel=3)


def _sum(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name} {tuple(tensors[name].shape)}".encode())
        digest.update(_bytes(tensors[name]))
    return digest.hexdigest()


def _bytes(x: Tensor) -> memoryview:
    array: Any = x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return memoryview(array)
