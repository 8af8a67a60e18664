"""The settings that define a run, and the comparison of a result with them."""

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from divconq.config import PLACES, Config

KINDS = {name: item.type for name, (_, item) in PLACES.items()}
MACHINE = ("root", "cache", "workers", "device", "save_minutes", "save_steps")
IGNORED = (*MACHINE, "train_recall")  # they do not change a result
COMMAND_LINE = (*MACHINE, "backbone_weights", "import_file")  # a table cannot set them


def settings_of(config: Config) -> dict[str, Any]:
    """Return the settings that define a run: files by a hash of their content, and no settings of the machine.

    >>> settings_of(Config.of(root=Path("/data"), k_max=8)) == settings_of(Config.of(device="cpu", k_max=8))
    True
    """
    return portable({name: value for name, value in config.settings().items() if name not in IGNORED})


def portable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as JSON values that are the same on every machine.

    >>> portable({"data": "some/where/photos", "ks": (1, 2)})
    {'data': 'photos', 'ks': [1, 2]}
    """
    plain = {name: _content(value) if isinstance(value, Path) else value for name, value in settings.items()}
    if "data" in plain:
        plain["data"] = Path(plain["data"]).name
    return dict(json.loads(json.dumps(plain)))


@lru_cache
def _content(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"there is no file {path}; name an existing one")
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return f"sha256:{digest.hexdigest()}"


@lru_cache
def default_settings() -> dict[str, Any]:
    """Return the defaults of the settings that define a run."""
    return settings_of(Config())


def agree(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether a result has the wanted settings.

    A setting that is newer than the result must be wanted at its default. A setting that no longer exists must have
    had its default; ``divconq.config.upgraded`` removes it only then.

    >>> agree({"k_max": 4}, {"k_max": 4, "masks": "learned"}), agree({"k_max": 4}, {"k_max": 4, "masks": "fixed"})
    (True, False)
    >>> agree({"k_max": 4, "no_longer_known": 7}, {"k_max": 4})
    False
    """
    return stored.keys() <= wanted.keys() and all(
        stored.get(name, default_settings().get(name)) == value for name, value in wanted.items()
    )
