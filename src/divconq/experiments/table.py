"""A table of experiments: named sets of flags (rows) by seeds, read from YAML, checked before anything runs."""

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from divconq.checks import did_you_mean
from divconq.config import PLACES, Config, upgraded
from divconq.io.yaml_values import convert, read_yaml
from divconq.presets import preset

KINDS = {name: field.type for name, (_, field) in PLACES.items()}
OF_THE_MACHINE = ("root", "cache", "workers", "device", "save_minutes", "save_steps")
NOT_OF_THE_RESULT = (*OF_THE_MACHINE, "train_recall")  # it is the same with any of these
ON_THE_COMMAND_LINE = (*OF_THE_MACHINE, "backbone_weights", "import_file")
METRICS = ("recall@1", "map@r", "nmi", "marp")


@dataclass(frozen=True)
class Row:
    """One line of a table: a set of flags, run with every seed."""

    name: str
    title: str
    flags: Mapping[str, Any]
    seeds: tuple[int, ...]
    baseline: str | None
    paper: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """Rows on top of a preset and of flags that all of them have."""

    name: str
    title: str
    preset: str
    common: Mapping[str, Any]
    rows: tuple[Row, ...]
    metrics: tuple[str, ...] = METRICS

    def __post_init__(self) -> None:
        names = [row.name for row in self.rows]
        for row in self.rows:
            if row.baseline is not None and row.baseline not in names:
                hint = did_you_mean(row.baseline, names)
                raise ValueError(
                    f"{self.name}: the baseline of {row.name}, {row.baseline!r}, is no row{hint}"
                )
            try:
                config = self.config(row, row.seeds[0])
            except ValueError as error:
                raise ValueError(f"{self.name}, row {row.name}: {error}") from error
            for metric in (*self.metrics, *row.paper):
                recalls = [f"recall@{k}" for k in config.evaluation.ks]
                known = [*recalls, "map@r", "r_precision", "marp", "nmi"]
                known += [f"val_{name}" for name in known] if config.data.val_classes else []
                if metric not in known:
                    raise ValueError(
                        f"{self.name}, row {row.name}: unknown metric {metric!r}: it has {', '.join(known)}"
                        f"{did_you_mean(metric, known)}"
                    )

    def config(self, row: Row, seed: int, **machine: object) -> Config:
        """The settings of one run; ``machine`` are those that do not change its outcome."""
        flags: dict[str, Any] = {**self.common, **row.flags, "seed": seed, **machine}
        return preset(self.preset).replace(**flags)

    def with_preset(self, name: str) -> "Table":
        """The same rows on top of another preset; it is called by both names, so that files stay apart."""
        return dataclasses.replace(
            self, name=f"{self.name}-{name}", title=f"{self.title} (preset {name})", preset=name
        )

    def with_changes(self, changes: Mapping[str, Any]) -> "Table":
        """The table with some flags changed in every row; not those that tell its rows apart."""
        if (clash := self.clash(changes)) is not None:
            raise ValueError(
                f"{clash} is what the rows of {self.name} differ in, so it cannot be set for all of them; "
                "edit a copy of the table"
            )
        return dataclasses.replace(self, common={**self.common, **changes})

    def clash(self, changes: Mapping[str, Any]) -> str | None:
        """The first of the changed flags that a row sets by itself."""
        return next((name for name in changes if any(name in row.flags for row in self.rows)), None)

    def runs(self) -> list[tuple[Row, int]]:
        """Every run of the table: the first seed of all rows, then the second, so that pairs end together."""
        most = max(len(row.seeds) for row in self.rows)
        return [(row, row.seeds[i]) for i in range(most) for row in self.rows if i < len(row.seeds)]


def load_table(path: Path) -> Table:
    """Read a table; anything it does not know is an error that names the nearest it does."""
    if not path.is_file():
        raise ValueError(f"there is no table {path}; name a .yaml file such as those in tables/")
    return parse_table(path.stem, path.read_text())


def parse_table(name: str, text: str) -> Table:
    """A table from its YAML.

    >>> rows = "rows: {plain: {flags: {k_max: 1, masks: none}}, ours: {}}"
    >>> table = parse_table("t", "{title: T, preset: demo, seeds: [0, 1], baseline: plain, " + rows + "}")
    >>> [(row.name, seed, table.config(row, seed).division.k_max) for row, seed in table.runs()]
    [('plain', 0, 1), ('ours', 0, 4), ('plain', 1, 1), ('ours', 1, 4)]
    """
    known = ("title", "preset", "common", "baseline", "seeds", "metrics", "rows")
    given = _mapping(name, read_yaml(text, f"the table {name}"), known)
    for key in ("title", "preset", "rows"):
        if key not in given:
            raise ValueError(f"{name} has no {key!r}; a table needs title, preset and rows")
    rows = _mapping(f"{name}: rows", given["rows"])
    if not rows:
        raise ValueError(f"{name}: rows is empty; name at least one")
    return Table(
        name,
        str(given["title"]),
        str(given["preset"]),
        flags(f"{name}: common", given.get("common")),
        tuple(_row(name, str(key), value, given) for key, value in rows.items()),
        tuple(given.get("metrics", METRICS)),
    )


def _row(table: str, name: str, value: object, defaults: Mapping[str, Any]) -> Row:
    where = f"{table}, row {name}"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", name):
        raise ValueError(f"{where}: a row's name is part of file names: use letters, digits and . _ + -")
    given = _mapping(where, value, ("title", "flags", "seeds", "baseline", "paper"))
    baseline = given.get("baseline", defaults.get("baseline"))
    paper = _mapping(f"{where}: paper", given.get("paper"))
    return Row(
        name,
        str(given.get("title", name)),
        flags(f"{where}: flags", given.get("flags")),
        _seeds(where, given.get("seeds", defaults.get("seeds", [0]))),
        None if baseline == name or baseline is None else str(baseline),
        {metric: float(figure) for metric, figure in paper.items()},
    )


def flags(where: str, given: object) -> dict[str, Any]:
    """Settings by their names in ``Config``, each converted to its kind.

    A loss or miner that is named starts from its own default arguments.

    >>> flags("common", {"lr": 1e-5, "ks": [1, 10]})
    {'lr': 1e-05, 'ks': (1, 10)}
    >>> flags("common", {"mask": "fixed"})
    Traceback (most recent call last):
    ValueError: common: unknown flag 'mask'; did you mean 'masks'?
    """
    values: dict[str, Any] = {}
    for name, value in _mapping(where, given).items():
        if name in ON_THE_COMMAND_LINE:
            flag = "import" if name == "import_file" else name.replace("_", "-")
            raise ValueError(f"{where}: {name} belongs to the machine; give --{flag} on the command line")
        if name == "seed":
            raise ValueError(f"{where}: the seeds of a row are its 'seeds', not a flag")
        if name not in KINDS:
            raise ValueError(f"{where}: unknown flag {name!r}{did_you_mean(name, KINDS)}")
        if name in ("loss", "miner"):
            values.setdefault(f"{name}_args", {})
        try:
            values[name] = convert(KINDS[name], value)
        except ValueError as error:
            raise ValueError(f"{where}: {name} must be {error}") from error
    return upgraded(values)


def parse_changes(words: Sequence[str]) -> dict[str, Any]:
    """What ``--set NAME=VALUE`` says.

    >>> parse_changes(["epochs=30", "crop-scale=[0.2, 1]"])
    {'epochs': 30, 'crop_scale': (0.2, 1.0)}
    """
    given = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"--set needs a name and a value, for example --set epochs=30, got {word!r}")
        given[name.replace("-", "_")] = read_yaml(value, f"--set {name}")
    return flags("--set", given)


def parse_names(text: str | None) -> list[str]:
    """What ``--rows`` says.

    >>> parse_names("margin, fixed")
    ['margin', 'fixed']
    """
    return [] if text is None else [name.strip() for name in text.split(",")]


def share_rows(tables: Sequence[Table], names: Collection[str]) -> list[tuple[Table, list[str]]]:
    """Of several tables those that have rows of these names, each with its own; without names all, and all rows.

    >>> table = parse_table("one", "{title: One, preset: cub, rows: {margin: {flags: {k_max: 1}}}}")
    >>> [rows for _, rows in share_rows([table], ["margin"])]
    [['margin']]
    """
    known = dict.fromkeys(row.name for table in tables for row in table.rows)
    for name in names:
        if name not in known:
            all_of_them = ", ".join(table.name for table in tables)
            hint = did_you_mean(name, known)
            raise ValueError(f"{all_of_them} has no row {name!r}: choose from {', '.join(known)}{hint}")
    shared = [(table, [row.name for row in table.rows if row.name in names]) for table in tables]
    return [(table, rows) for table, rows in shared if rows or not names]


def parse_seeds(text: str | None) -> list[int]:
    """What ``--seeds`` says.

    >>> parse_seeds("0,1")
    [0, 1]
    """
    names = parse_names(text)
    if not all(name.isdecimal() for name in names):
        raise ValueError(f"--seeds must be whole numbers with commas between them, got {text!r}")
    return [int(name) for name in names]


def _seeds(where: str, value: object) -> tuple[int, ...]:
    whole = isinstance(value, list) and all(type(seed) is int and seed >= 0 for seed in value)
    if not isinstance(value, list) or not whole or not value or len(set(value)) < len(value):
        raise ValueError(f"{where}: seeds must be a list of different whole numbers, got {value!r}")
    return tuple(value)


def _mapping(where: str, value: object, known: Sequence[str] | None = None) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be a table of names and values, got {value!r}")
    for key in value if known is not None else ():
        if key not in (known or ()):
            hint = did_you_mean(str(key), known or ())
            raise ValueError(f"{where}: unknown key {key!r}: choose from {', '.join(known or ())}{hint}")
    return {str(key): item for key, item in value.items()}
