"""A table of experiments: rows (named sets of flags) with seeds, read from YAML and checked before any run."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from divconq.checks import did_you_mean
from divconq.config import Config
from divconq.evaluation.scores import score_names
from divconq.experiments.flags import parse_flags, parse_mapping
from divconq.experiments.settings import settings_of
from divconq.io.yaml_values import read_yaml
from divconq.presets import preset

DRAWS_GALLERIES = ("vehicleid",)  # datasets that are also searched in galleries of one image per class
METRICS = ("recall@1", "map@r", "nmi", "marp")
TABLE_KEYS = ("title", "preset", "common", "baseline", "seeds", "metrics", "rows", "sections")
SECTION_KEYS = ("title", "preset", "common", "baseline", "seeds", "rows")
ROW_KEYS = ("title", "flags", "seeds", "baseline", "paper")


@dataclass(frozen=True)
class Row:
    """A set of flags that is run with several seeds.

    ``paper`` has the published scores in percent. ``preset`` replaces the preset of the table. ``section`` is
    the title of its section.
    """

    name: str
    title: str
    flags: Mapping[str, Any]
    seeds: tuple[int, ...]
    baseline: str | None
    paper: Mapping[str, float] = field(default_factory=dict)
    preset: str | None = None
    section: str | None = None


@dataclass(frozen=True)
class Table:
    """Rows that share a preset and the flags in ``common``."""

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
            known = _scores(config)
            for metric in (*self.metrics, *row.paper):
                if metric not in known:
                    raise ValueError(
                        f"{self.name}, row {row.name}: unknown metric {metric!r}: it has {', '.join(known)}"
                        f"{did_you_mean(metric, known)}"
                    )

    def config(self, row: Row, seed: int, **machine: object) -> Config:
        """Return the config of one run; ``machine`` are settings that do not change its result."""
        flags: dict[str, Any] = {**self.common, **row.flags, "seed": seed, **machine}
        return preset(row.preset or self.preset).replace(**flags)

    def settings(self, row: Row, seed: int, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings that define one run; ``overrides`` are in their portable form."""
        return {**settings_of(self.config(row, seed)), **overrides}

    def with_preset(self, name: str) -> "Table":
        """Return the table with another preset. The preset is added to the name of the table."""
        return replace(
            self,
            name=f"{self.name}-{name}",
            title=f"{self.title} (preset {name})",
            preset=name,
            rows=tuple(replace(row, preset=None) for row in self.rows),
        )

    def with_changes(self, changes: Mapping[str, Any]) -> "Table":
        """Return the table with some flags changed in all rows. Raise ValueError if a row sets one of them itself."""
        if (clash := self.clash(changes)) is not None:
            raise ValueError(
                f"{clash} is what the rows of {self.name} differ in, so it cannot be set for all of them; "
                "edit a copy of the table"
            )
        return replace(self, common={**self.common, **changes})

    def clash(self, changes: Mapping[str, Any]) -> str | None:
        """Return the first of the changed flags that a row sets itself, or None."""
        return next((name for name in changes if any(name in row.flags for row in self.rows)), None)

    def runs(self) -> list[tuple[Row, int]]:
        """Return every run as row and seed: all rows with their first seed, then with their second, and so on."""
        most = max(len(row.seeds) for row in self.rows)
        return [(row, row.seeds[i]) for i in range(most) for row in self.rows if i < len(row.seeds)]


def _scores(config: Config) -> list[str]:
    """Return the names of the scores that a run logs, with the prefixes of ``evaluation.scores``."""
    names, ks = score_names(config.evaluation.ks), config.evaluation.ks
    held_out = [f"val_{name}" for name in names] if config.data.val_classes else []
    drawn = [f"reid_recall@{k}" for k in ks] if config.data.name.partition(":")[0] in DRAWS_GALLERIES else []
    return names + held_out + drawn + (["train_recall@1"] if config.evaluation.train_recall else [])


def load_table(path: Path) -> Table:
    """Read a table from a YAML file."""
    if not path.is_file():
        raise ValueError(f"there is no table {path}; name a .yaml file such as those in tables/")
    return parse_table(path.stem, path.read_text())


def parse_table(name: str, text: str) -> Table:
    """Return the table in a YAML text. An error about an unknown name suggests the nearest known one.

    >>> rows = "rows: {plain: {flags: {k_max: 1, masks: none}}, ours: {}}"
    >>> table = parse_table("t", "{title: T, preset: demo, seeds: [0, 1], baseline: plain, " + rows + "}")
    >>> [(row.name, seed, table.config(row, seed).division.k_max) for row, seed in table.runs()]
    [('plain', 0, 1), ('ours', 0, 4), ('plain', 1, 1), ('ours', 1, 4)]
    """
    given = parse_mapping(name, read_yaml(text, f"the table {name}"), TABLE_KEYS)
    _require(name, given, "title", "preset")
    if "sections" in given:
        sections = parse_mapping(f"{name}: sections", given["sections"])
        rows = [row for key, value in sections.items() for row in _section(name, key, value, given)]
    else:
        rows = _rows(name, given, given)
    return Table(
        name,
        str(given["title"]),
        str(given["preset"]),
        parse_flags(f"{name}: common", given.get("common")),
        tuple(rows),
        _metrics(name, given.get("metrics", list(METRICS))),
    )


def _require(where: str, given: Mapping[str, Any], *keys: str) -> None:
    for key in keys:
        if key not in given:
            raise ValueError(f"{where} has no {key!r}; a table needs title, preset and rows")


def _section(table: str, name: str, value: object, defaults: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a section, with its name as prefix of their names and with its common flags."""
    where = f"{table}, section {name}"
    given = parse_mapping(where, value, SECTION_KEYS)
    common = parse_flags(f"{where}: common", given.get("common"))
    return [
        replace(
            row,
            name=f"{name}-{row.name}",
            baseline=row.baseline and f"{name}-{row.baseline}",
            flags={**common, **row.flags},
            preset=str(given["preset"]) if "preset" in given else None,
            section=str(given.get("title", name)),
        )
        for row in _rows(where, given, {**defaults, **given})
    ]


def _rows(where: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[Row]:
    _require(where, given, "rows")
    rows = parse_mapping(f"{where}: rows", given["rows"])
    if not rows:
        raise ValueError(f"{where}: rows is empty; name at least one")
    return [_row(where, key, value, defaults) for key, value in rows.items()]


def _row(table: str, name: str, value: object, defaults: Mapping[str, Any]) -> Row:
    where = f"{table}, row {name}"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", name):
        raise ValueError(f"{where}: a row's name is part of file names: use letters, digits and . _ + -")
    given = parse_mapping(where, value, ROW_KEYS)
    baseline = given.get("baseline", defaults.get("baseline"))
    paper = parse_mapping(f"{where}: paper", given.get("paper"))
    return Row(
        name,
        str(given.get("title", name)),
        parse_flags(f"{where}: flags", given.get("flags")),
        _seeds(where, given.get("seeds", defaults.get("seeds", [0]))),
        None if baseline == name or baseline is None else str(baseline),
        {metric: _percent(f"{where}: paper: {metric}", figure) for metric, figure in paper.items()},
    )


def _metrics(where: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise ValueError(
            f"{where}: metrics must be a list of scores, got {value!r}; write metrics: [recall@1, map@r]"
        )
    if len(set(value)) < len(value):
        raise ValueError(f"{where}: metrics must be different, got {', '.join(value)}; name each one once")
    return tuple(value)


def _percent(where: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
        raise ValueError(f"{where} must be a score in percent, from 0 to 100, got {value!r}")
    return float(value)


def _seeds(where: str, value: object) -> tuple[int, ...]:
    whole = isinstance(value, list) and all(type(seed) is int and seed >= 0 for seed in value)
    if not isinstance(value, list) or not whole or not value or len(set(value)) < len(value):
        raise ValueError(f"{where}: seeds must be a list of different whole numbers, got {value!r}")
    return tuple(value)
