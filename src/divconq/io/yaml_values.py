"""Values from YAML as the kinds that settings have."""

from collections.abc import Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml

from divconq.checks import did_you_mean

WANTED = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a word",
    dict: "a table of names and values",
    Path: "a path",
}


def read_yaml(text: str, what: str) -> Any:  # noqa: ANN401
    """The value that a text stands for; ``what`` it is is said if it stands for none.

    >>> read_yaml("[1, 2]", "--set ks")
    [1, 2]
    """
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"
        raise ValueError(f"{what} is not YAML{place}; see that brackets and quotes are closed") from error


def convert(kind: Any, value: object) -> Any:  # noqa: ANN401
    """A value from YAML as the kind a setting has, or a ValueError that says what was wanted.

    >>> convert(float, "1e-5"), convert(int | None, None), convert(tuple[float, float], [0, 1])
    (1e-05, None, (0.0, 1.0))
    """
    origin, options = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return convert(options[0], value)
    if origin in (Union, UnionType):
        if value is None and NoneType in options:
            return None
        return convert(next(option for option in options if option is not NoneType), value)
    if origin is Literal:
        if value not in options:
            meant = did_you_mean(str(value), options)
            raise ValueError(f"one of {', '.join(options)}, got {value!r}{meant}")
        return value
    if origin is tuple:
        return _tuple(options, value)
    plain = origin or kind
    if plain is float and isinstance(value, (int, str)) and not isinstance(value, bool):
        try:
            return float(value)  # YAML takes 1e-5 for a word
        except ValueError:
            pass
    if plain is Path and isinstance(value, str):
        return Path(value)
    if not isinstance(value, plain) or (plain is int and isinstance(value, bool)):
        raise ValueError(f"{WANTED[plain]}, got {value!r}")
    return value


def _tuple(options: Sequence[Any], value: object) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"a list, got {value!r}")
    kinds = [options[0]] * len(value) if options[-1] is Ellipsis else list(options)
    if len(kinds) != len(value):
        raise ValueError(f"a list of {len(kinds)}, got {value!r}")
    return tuple(convert(kind, item) for kind, item in zip(kinds, value, strict=True))
