"""What all ranks of a run must have in common: settings, versions and data.

These settings may differ between machines: ``data`` and ``root`` (the images are compared instead), ``import_file``
and ``backbone_weights`` (the contents of the files are compared), ``cache`` and ``workers``.
"""

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from divconq.accel.device import pick_device
from divconq.config import Config, plain_settings
from divconq.data import Dataset, ImageSet
from divconq.data.dataset import ImageStore, source_rows
from divconq.data.images.files import ImageFiles
from divconq.data.images.workers import map_in_threads
from divconq.distributed import check_equal, on_every, size

PER_MACHINE = ("data", "root", "cache", "workers")
FILES = ("import_file", "backbone_weights")
DIGITS = 12  # of a hash in an error message


def check_same_command(config: Config, **arguments: object) -> None:
    """Raise ValueError on every rank if settings, versions or ``arguments`` differ between ranks.

    >>> check_same_command(Config(), resume=False)
    """
    if size() > 1:
        settings = on_every(settings_and_versions, config)
        given = {name: value if value is None else str(value) for name, value in arguments.items()}
        check_equal({**given, **settings}, "start all ranks with the same command and the same versions")


def check_same_data(fingerprints: Mapping[str, object]) -> None:
    """Raise ValueError on every rank if the data differs between ranks; see ``data_fingerprints``."""
    check_equal(fingerprints, "give all ranks the same data")


def settings_and_versions(config: Config) -> dict[str, object]:
    """Return the settings that must be equal on all ranks, and the versions of the software.

    >>> settings_and_versions(Config.of(k_max=8))["k_max"]
    8
    """
    from divconq import __version__

    settings: dict[str, object] = {
        name: value for name, value in plain_settings(config).items() if name not in PER_MACHINE
    }
    for name in FILES:
        if (path := settings[name]) is not None:
            settings[name] = f"with the hash {_hash(_content(Path(str(path))))}"
    settings["device"] = pick_device(config.runtime.device).type
    python = ".".join(map(str, sys.version_info[:2]))
    return {**settings, "divconq": __version__, "torch": torch.__version__, "python": python}


def data_fingerprints(data: Dataset, validation: ImageSet | None = None) -> dict[str, object]:
    """Return the number of images of each split, and hashes of its classes, labels, file names and file sizes."""
    sets = {"training": data.train, "held-out": validation, "test": data.test, "gallery": data.gallery}
    found: dict[str, object] = {}
    for split, images in sets.items():
        if images is not None:
            found[f"{split} images"] = len(images)
            found[f"{split} classes"] = _hash("\n".join(images.names))
            found[f"{split} labels"] = _hash(_bytes(images.labels))
            found[f"{split} files"] = _hash("\n".join(map(_portable, images.paths)))
            found[f"{split} file sizes"] = _hash(_sizes(images))
    return found


def _sizes(images: ImageSet) -> bytes:
    """Return the shapes of the images, and the sizes of their files if there are any."""
    aspect = _bytes(images.store.aspect)
    return aspect + repr(_file_sizes(*source_rows(images.store))).encode()


def _file_sizes(store: ImageStore, rows: Tensor) -> list[int]:
    if not isinstance(store, ImageFiles):
        return []
    files = [store.files[row] for row in rows.tolist()]
    return map_in_threads(lambda file: file.stat().st_size if file.exists() else -1, files, store.workers)


def _portable(path: str) -> str:
    """Return a path without the folders that may differ between machines."""
    return Path(path).name if Path(path).is_absolute() else path


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _bytes(x: Tensor) -> bytes:
    content: bytes = x.cpu().numpy().tobytes()
    return content


def _hash(content: str | bytes) -> str:
    content = content.encode(errors="surrogateescape") if isinstance(content, str) else content
    return hashlib.sha256(content).hexdigest()[:DIGITS]
