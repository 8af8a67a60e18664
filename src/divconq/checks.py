"""Sentences that several rooms say when they are given something wrong."""

import difflib
from collections.abc import Iterable


def check_power_of_two(name: str, value: int) -> None:
    """Refuse a number of clusters that repeated doubling from one cannot reach.

    >>> check_power_of_two("k_max", 6)
    Traceback (most recent call last):
    ValueError: k_max must be a power of two, got 6; use 4 or 8
    """
    if value < 1 or value & (value - 1):
        below = 1 << (max(value, 1).bit_length() - 1)
        raise ValueError(f"{name} must be a power of two, got {value}; use {below} or {2 * below}")


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """The end of a sentence that suggests the nearest of the choices, if any is near.

    >>> did_you_mean("tripplet", ["margin", "triplet"])
    "; did you mean 'triplet'?"
    """
    spelling = {choice.lower(): choice for choice in choices}
    near = difflib.get_close_matches(name.lower(), spelling, n=1)
    return f"; did you mean {spelling[near[0]]!r}?" if near else ""
