"""The numeric setting in which the rows of a table differ, and the lines of a figure of the scores over it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from divconq.config import PLACES

FEWEST_VALUES = 3  # of the setting, in one line of the figure
MOST_LINES = 8
# Settings without effect if k_max is 1
OF_DIVISION = {name for name, (section, _) in PLACES.items() if section in ("division", "masks")} - {"k_max"}

Settings: TypeAlias = Mapping[str, Any]
Line: TypeAlias = dict[str, Any]


def curves_of(rows: Mapping[str, Settings], titles: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the numeric ``setting`` in which the rows of a table differ, and its ``lines``; None without one.

    ``rows`` has the settings of each row. A line has rows that differ in no other setting: ``rows`` has their values,
    ``title`` what their titles have in common. A row without division (k_max 1) has no masks and no E. So it belongs to
    every line over k_max, and is a horizontal line, ``level``, over a setting of the division.

    >>> sizes = {f"d{dim}": {"dim": dim, "k_max": 1} for dim in (64, 128, 512)}
    >>> curves_of(sizes, {name: f"d = {name[1:]}, margin loss" for name in sizes})["lines"]
    [{'title': 'margin loss', 'rows': {'d64': 64, 'd128': 128, 'd512': 512}, 'level': False}]
    """
    every = dict.fromkeys(name for settings in rows.values() for name in settings)
    differ = [name for name in every if len({_key(settings.get(name)) for settings in rows.values()}) > 1]
    found = {}
    for setting in differ:
        if all(_is_number(settings.get(setting)) for settings in rows.values()):
            others = [name for name in differ if name not in (setting, "seed")]
            if (lines := _lines(setting, others, rows, titles)) is not None:
                found[setting] = lines
    if not found:
        return None
    setting = max(found, key=lambda name: max(_values(line) for line in found[name]))
    return {"setting": setting, "lines": found[setting]}


def _lines(
    setting: str, others: Sequence[str], rows: Mapping[str, Settings], titles: Mapping[str, str]
) -> list[Line] | None:
    """Return the lines over a setting; None if a row stands alone, or if no line has enough values."""
    groups: dict[str, list[str]] = {}
    undivided = [name for name, settings in rows.items() if settings.get("k_max") == 1]
    shared = undivided if setting == "k_max" or setting in OF_DIVISION else []
    for name in (name for name in rows if name not in shared):
        groups.setdefault(_key(_relevant(rows[name], others)), []).append(name)
    lines: list[Line] = []
    for members in groups.values():
        own = _name(members, others, rows, list(groups.values()), titles)
        joined = [
            name for name in shared if setting == "k_max" and _agree(rows[name], rows[members[0]], others)
        ]
        values = {name: rows[name][setting] for name in rows if name in (*joined, *members)}
        own = own or ("measured" if setting == "k_max" else "with division")
        lines.append({"title": own, "rows": values, "level": False})
    if setting != "k_max":
        lines += [{"title": titles[name], "rows": {name: None}, "level": True} for name in shared]
    curves = [line for line in lines if not line["level"]]
    enough = curves and min(map(_values, curves)) > 1 and max(map(_values, curves)) >= FEWEST_VALUES
    drawn = {name for line in lines for name in line["rows"]}
    return lines if enough and drawn == set(rows) and len(lines) <= MOST_LINES else None


def _relevant(settings: Settings, others: Sequence[str]) -> dict[str, Any]:
    """Return the settings that tell the lines apart, without those that have no effect."""
    ignored = OF_DIVISION if settings.get("k_max") == 1 else set()
    return {name: settings.get(name) for name in others if name not in ignored}


def _agree(undivided: Settings, other: Settings, others: Sequence[str]) -> bool:
    return all(undivided.get(name) == other.get(name) for name in others if name not in OF_DIVISION)


def _name(
    members: Sequence[str],
    others: Sequence[str],
    rows: Mapping[str, Settings],
    groups: Sequence[Sequence[str]],
    titles: Mapping[str, str],
) -> str:
    """Return what the titles of the rows have in common, else the settings that differ from those of other lines."""
    parts = [titles[name].split(", ") for name in members]
    if common := [part for part in parts[0] if all(part in other for other in parts)]:
        return ", ".join(common)
    differ = [name for name in others if len({_key(rows[group[0]].get(name)) for group in groups}) > 1]
    return ", ".join(f"{name} {rows[members[0]].get(name)}" for name in differ)


def _values(line: Line) -> int:
    return len(set(line["rows"].values()))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _key(value: object) -> str:
    return json.dumps(value, sort_keys=True)
