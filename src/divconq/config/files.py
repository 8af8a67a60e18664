"""Config files: `config.yaml` of a run, and settings of older versions."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from divconq.config.nested import PLACES, SECTIONS, Config
from divconq.io.yaml_values import read_yaml, write_yaml

NEVER = 1e9  # minutes between checkpoints; older versions took infinity for it


def to_yaml(config: Config) -> str:
    """Return the config as YAML, one table for each section.

    >>> from_yaml(to_yaml(Config.of(k_max=8))) == Config.of(k_max=8)
    True
    """
    sections: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    for name, value in plain_settings(config).items():
        section, item = PLACES[name]
        sections[section][item.name] = value
    return write_yaml(sections)


def plain_settings(config: Config) -> dict[str, Any]:
    """Return all settings by their flat names, as values for YAML and JSON: strings for paths, lists for tuples.

    >>> plain_settings(Config())["ks"]
    [1, 2, 4, 8]
    """
    return {name: _plain(value) for name, value in config.settings().items()}


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def from_yaml(text: str) -> Config:
    """Return the config in a YAML text. Settings are nested by section or, in older files, flat."""
    values = read_yaml(text, "a config")
    if not isinstance(values, dict):
        raise ValueError("a config must be a table of names and values")
    settings = upgraded(_flat(values))
    unknown = sorted(name for name in settings if name not in PLACES)
    if unknown:
        raise ValueError(
            f"unknown settings {', '.join(unknown)}; it was written by another version of divconq"
        )
    return Config.of(**settings)


def read_config(run: Path) -> Config:
    """Return the config of a run folder. Raise ValueError if there is none, or if it cannot be read."""
    file = run / "config.yaml"
    if not file.is_file():
        raise ValueError(
            f"{run} is not a run folder: it has no {file.name}; name the --out of a training run"
        )
    try:
        return from_yaml(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} cannot be read: {error}") from error


def _flat(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Return nested settings by their flat names. An unknown name is kept, with its section as prefix."""
    names = {(section, item.name): name for name, (section, item) in PLACES.items()}
    settings: dict[str, Any] = {}
    for name, value in values.items():
        if name in SECTIONS and isinstance(value, dict):
            given = {names.get((name, key), f"{name}.{key}"): some for key, some in value.items()}
        else:
            given = {str(name): value}
        if twice := settings.keys() & given.keys():
            raise ValueError(f"a config has the setting {min(twice)} twice; remove one of them")
        settings |= given
    return settings


def upgraded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return flat settings of an older version under their current names.

    >>> upgraded({"loss": "margin", "loss_args": {"apart": True}})
    {'loss': 'margin', 'loss_args': {'without_replacement': True}}
    """
    settings = dict(settings)
    if settings.get("save_minutes") == math.inf:
        settings["save_minutes"] = NEVER
    if settings.get("loss", "margin") == "margin" and isinstance(settings.get("loss_args"), dict):
        renamed = {"apart": "without_replacement", "even": "equal_pairs"}
        arguments = settings["loss_args"]
        settings["loss_args"] = {renamed.get(name, name): value for name, value in arguments.items()}
    return settings
