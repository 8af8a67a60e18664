"""Config files: `config.yaml` of a run, and settings that an older version wrote."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from divconq.config.nested import PLACES, SECTIONS, Config
from divconq.config.sections import SettingError
from divconq.io.yaml_values import read_yaml, write_yaml

# Settings of older versions that were removed: the only value that can still be read, and what replaces the others.
REMOVED = {
    "mean": (None, "write it into the metadata of the --backbone-weights file"),
    "std": (None, "write it into the metadata of the --backbone-weights file"),
}


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
    """Return all settings by their flat names; paths are strings and tuples are lists, as YAML and JSON need them.

    >>> plain_settings(Config())["ks"]
    [1, 2, 4, 8]
    """
    return {name: _plain(value) for name, value in config.settings().items()}


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def from_yaml(text: str) -> Config:
    """Read a config. The settings are nested by section or, in files of older versions, flat."""
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


def _flat(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Return nested settings by their flat names; a name that no section has is kept, after its section's."""
    names = {(section, item.name): name for name, (section, item) in PLACES.items()}
    settings: dict[str, Any] = {}
    for name, value in values.items():
        if name in SECTIONS and isinstance(value, dict):
            settings |= {names.get((name, key), f"{name}.{key}"): some for key, some in value.items()}
        else:
            settings[str(name)] = value
    return settings


def upgraded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return flat settings of an older version under their present names, without those that were removed.

    >>> upgraded({"loss": "margin", "loss_args": {"apart": True}})
    {'loss': 'margin', 'loss_args': {'without_replacement': True}}
    """
    for name, (only, remedy) in REMOVED.items():
        if settings.get(name, only) != only:
            raise SettingError(
                f"the setting {name} was removed and must be {only}, got {settings[name]!r}; {remedy}"
            )
    settings = {name: value for name, value in settings.items() if name not in REMOVED}
    if settings.get("loss", "margin") == "margin" and isinstance(settings.get("loss_args"), dict):
        renamed = {"apart": "without_replacement", "even": "equal_pairs"}
        arguments = settings["loss_args"]
        settings["loss_args"] = {renamed.get(name, name): value for name, value in arguments.items()}
    return settings
