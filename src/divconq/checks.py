"""Error messages that several packages share."""

import difflib
import reprlib
from collections.abc import Iterable

SYNONYMS = {"gpu": "cuda"}  # by spelling alone, "gpu" is closer to "cpu"
LONGEST_NAME = 100  # a longer one has no near match

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80
_short.maxlong, _short.maxlevel = 40, 2


class SettingError(ValueError):
    """Raised for a setting, or a combination of settings, that is not allowed."""


def shown(value: object) -> str:
    """Return a value for an error message, in one line; a long one is cut.

    >>> shown("demo"), shown([1] * 1000)
    ("'demo'", '[1, 1, 1, 1, 1, 1, ...]')
    """
    try:
        return " ".join(_short.repr(value).split())
    except ValueError:  # a number of more than 4,300 digits
        return "a number of too many digits"


def first_line(error: Exception) -> str:
    r"""Return the first line of an error message, or the kind of error if it has none.

    >>> first_line(RuntimeError("does not fit\nin detail"))
    'does not fit'
    """
    text = f"there is no {error}" if isinstance(error, KeyError) else str(error)
    return next(iter(text.strip().splitlines()), type(error).__name__)


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
    if len(name) > LONGEST_NAME:
        return ""
    if name.lower() in SYNONYMS and SYNONYMS[name.lower()] in (choices := list(choices)):
        return f"; did you mean {SYNONYMS[name.lower()]!r}?"
    spelling = {choice.lower(): choice for choice in choices}
    near = difflib.get_close_matches(name.lower(), spelling, n=1)
    return f"; did you mean {spelling[near[0]]!r}?" if near else ""


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise ValueError unless ``value`` is one of the choices.

    >>> check_choice("masks", "fix", ["learned", "fixed"])
    Traceback (most recent call last):
    ValueError: masks must be one of learned, fixed, got 'fix'; did you mean 'fixed'?
    """
    choices = list(choices)
    if value not in choices:
        raise ValueError(f"{name} must be {choice_problem(value, choices)}")


def choice_problem(value: object, choices: Iterable[str]) -> str:
    """Return the end of an error message for a value that is not one of the choices.

    >>> choice_problem("fix", ["learned", "fixed"])
    "one of learned, fixed, got 'fix'; did you mean 'fixed'?"
    """
    choices = list(choices)
    hint = did_you_mean(value, choices) if isinstance(value, str) else ""
    return f"one of {', '.join(choices)}, got {shown(value)}{hint}"


def check_disjoint_masks(kind: str, dim: int, k_max: int) -> None:
    """Raise SettingError if ``dim`` dimensions cannot be divided into ``k_max`` disjoint masks.

    >>> check_disjoint_masks("fixed", dim=8, k_max=4)
    """
    if dim < k_max:
        raise SettingError(
            f"{kind} masks need at least one dimension each: dim must be at least k_max = {k_max}, got {dim}; "
            "raise --dim, lower --k-max or use --masks learned"
        )


def check_batch(batch: int, per_class: int | None) -> None:
    """Raise SettingError unless a batch is made of at least two classes of ``per_class`` images each.

    >>> check_batch(10, 3)
    Traceback (most recent call last):
    divconq.checks.SettingError: batch must be a multiple of per_class = 3 and at least twice as large, got 10; ...
    """
    if batch < 2:
        raise SettingError(f"batch must be at least 2, got {batch}; a loss compares images")
    if per_class is None:
        return
    if per_class < 2:
        raise SettingError(f"per_class must be at least 2, got {per_class}; use None for uniform batches")
    if batch % per_class or batch < 2 * per_class:
        lower = max(2, batch // per_class) * per_class
        raise SettingError(
            f"batch must be a multiple of per_class = {per_class} and at least twice as large, got {batch}; "
            f"use {lower} or {lower + per_class}"
        )


def check_class_sampling(class_sampling: str, per_class: int | None) -> None:
    """Raise SettingError if classes are to be drawn, and batches are not made of classes.

    >>> check_class_sampling("classes", None)
    Traceback (most recent call last):
    divconq.checks.SettingError: class_sampling must be images without per_class, got 'classes'; ...
    """
    check_choice("class_sampling", class_sampling, ("images", "classes"))
    if class_sampling == "classes" and per_class is None:
        raise SettingError(
            "class_sampling must be images without per_class, got 'classes'; "
            "set --per-class, for example to 2, or leave --class-sampling out"
        )


def check_rate(name: str, value: object) -> None:
    """Raise SettingError unless ``value`` is a learning rate: a finite number of at least 0.

    >>> check_rate("mask_lr", 1e-3)
    """
    if not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise SettingError(
            f"{name} must be a finite number of at least 0, got {value!r}; use for example 1e-3"
        )
