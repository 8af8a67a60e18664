"""Error messages that several packages share."""

import difflib
from collections.abc import Iterable

SYNONYMS = {"gpu": "cuda"}  # "cpu" is spelt more like it


def check_power_of_two(name: str, value: int) -> None:
    """Raise a ValueError unless ``value`` is a power of two.

    >>> check_power_of_two("k_max", 6)
    Traceback (most recent call last):
    ValueError: k_max must be a power of two, got 6; use 4 or 8
    """
    if problem := power_of_two_problem(value):
        raise ValueError(f"{name} must be {problem}")


def power_of_two_problem(value: int) -> str:
    """Return the end of an error message for a number that is not a power of two, else "".

    >>> power_of_two_problem(6)
    'a power of two, got 6; use 4 or 8'
    """
    if value >= 1 and not value & (value - 1):
        return ""
    below = 1 << (max(value, 1).bit_length() - 1)
    return f"a power of two, got {value}; use {below} or {2 * below}"


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return the end of an error message that suggests the most similar choice, or "" if none is similar.

    >>> did_you_mean("tripplet", ["margin", "triplet"])
    "; did you mean 'triplet'?"
    """
    if name.lower() in SYNONYMS and SYNONYMS[name.lower()] in (choices := list(choices)):
        return f"; did you mean {SYNONYMS[name.lower()]!r}?"
    spelling = {choice.lower(): choice for choice in choices}
    near = difflib.get_close_matches(name.lower(), spelling, n=1)
    return f"; did you mean {spelling[near[0]]!r}?" if near else ""
