"""Parse the flags in a table, and the values of ``--set``, ``--rows`` and ``--seeds``."""

from collections.abc import Sequence
from typing import Any

from divconq.checks import did_you_mean
from divconq.config import upgraded
from divconq.experiments.settings import COMMAND_LINE, KINDS
from divconq.io.yaml_values import convert, read_yaml


def parse_flags(where: str, given: object) -> dict[str, Any]:
    """Return settings by name, each converted to its type. A new ``loss`` or ``miner`` resets its arguments.

    >>> parse_flags("common", {"lr": 1e-5, "ks": [1, 10]})
    {'lr': 1e-05, 'ks': (1, 10)}
    >>> parse_flags("common", {"mask": "fixed"})
    Traceback (most recent call last):
    ValueError: common: unknown flag 'mask'; did you mean 'masks'?
    """
    values: dict[str, Any] = {}
    for name, value in parse_mapping(where, given).items():
        if name in COMMAND_LINE:
            flag = "import" if name == "import_file" else name.replace("_", "-")
            raise ValueError(f"{where}: {name} belongs to the machine; give --{flag} on the command line")
        if name == "seed":
            raise ValueError(f"{where}: the seeds of a row are its 'seeds', not a flag")
        if name not in KINDS:
            raise ValueError(f"{where}: unknown flag {name!r}{did_you_mean(name, KINDS)}")
        if name in ("loss", "miner"):
            values.setdefault(f"{name}_args", {})
        if name == "loss":
            values = {"alpha": None, "beta": None, **values}
        try:
            values[name] = convert(KINDS[name], value)
        except ValueError as error:
            raise ValueError(f"{where}: {name} must be {error}") from error
    return upgraded(values)


def parse_mapping(where: str, value: object, known: Sequence[str] | None = None) -> dict[str, Any]:
    """Return a YAML mapping with its keys as strings. Raise ValueError for keys that are not ``known``.

    >>> parse_mapping("rows", {1: "a"}), parse_mapping("rows", None)
    ({'1': 'a'}, {})
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be a table of names and values, got {value!r}")
    for key in value if known is not None else ():
        if key not in (known or ()):
            hint = did_you_mean(str(key), known or ())
            raise ValueError(f"{where}: unknown key {key!r}: choose from {', '.join(known or ())}{hint}")
    return {str(key): item for key, item in value.items()}


def parse_changes(words: Sequence[str]) -> dict[str, Any]:
    """Return the settings in the values of ``--set``.

    >>> parse_changes(["epochs=30", "crop-scale=[0.2, 1]"])
    {'epochs': 30, 'crop_scale': (0.2, 1.0)}
    """
    given = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"--set needs a name and a value, for example --set epochs=30, got {word!r}")
        given[name.replace("-", "_")] = read_yaml(value, f"--set {name}")
    return parse_flags("--set", given)


def parse_names(text: str | None) -> list[str]:
    """Return the row names in the value of ``--rows``.

    >>> parse_names("margin, fixed")
    ['margin', 'fixed']
    """
    return [] if text is None else [name.strip() for name in text.split(",")]


def parse_seeds(text: str | None) -> list[int]:
    """Return the seeds in the value of ``--seeds``.

    >>> parse_seeds("0,1")
    [0, 1]
    """
    names = parse_names(text)
    if not all(name.isdecimal() for name in names):
        raise ValueError(f"--seeds must be whole numbers with commas between them, got {text!r}")
    return [int(name) for name in names]
