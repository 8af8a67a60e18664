"""Read and write YAML, and check the types, choices and ranges of settings."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml

from divconq.checks import choice_problem, power_of_two_problem

WANTED = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    dict: "a table of names and values",
    Path: "a path",
}


EXPONENT = re.compile(r"^[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$")


class _Loader(yaml.SafeLoader):
    """Reads values such as 1e-5 as numbers; in YAML 1.1 they are strings, and as keys they stay strings."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and EXPONENT.match(key.value) and key.style is None:
                key.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes strings that `_Loader` would read as numbers."""


for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        EXPONENT,
        list("-+.0123456789"),
    )


def read_yaml(text: str, what: str) -> Any:  # noqa: ANN401
    """Return the value of a YAML text; ``what`` names the text in the error message.

    >>> read_yaml("[1, 2e-3]", "--set ks")
    [1, 0.002]
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"
        raise ValueError(f"{what} is not YAML{place}; close all brackets and quotes") from error


def write_yaml(value: object) -> str:
    """Return a value as YAML; the keys keep their order.

    >>> print(write_yaml({"lr": 0.1, "tag": "1e5"}), end="")
    lr: 0.1
    tag: '1e5'
    """
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False))


@dataclass(frozen=True)
class Limit:
    """The allowed values of a setting, used as ``Annotated[int, at_least(1)]``.

    ``problem`` returns the end of an error message, or "" if the value is allowed.
    """

    problem: Callable[[Any], str]


def at_least(bound: float) -> Limit:
    """Allow numbers from ``bound`` on."""
    return Limit(lambda value: "" if value >= bound else f"at least {bound}, got {value}")


def at_most(bound: float) -> Limit:
    """Return the limit of the numbers up to ``bound``."""
    return Limit(lambda value: "" if value <= bound else f"at most {bound}, got {value}")


def above(bound: float) -> Limit:
    """Allow numbers above ``bound``."""
    return Limit(lambda value: "" if value > bound else f"above {bound}, got {value}")


def below(bound: float) -> Limit:
    """Allow numbers below ``bound``."""
    return Limit(lambda value: "" if value < bound else f"below {bound}, got {value}")


def one_of(table: Mapping[str, object]) -> Limit:
    """Allow the names in a table, including names that are added later."""
    return Limit(lambda value: "" if value in table else choice_problem(value, table))


def metavar(table: Iterable[str]) -> str:
    """Return the choices in the format of a help text.

    >>> metavar(["learned", "fixed"])
    '{learned,fixed}'
    """
    return "{" + ",".join(table) + "}"


POWER_OF_TWO = Limit(power_of_two_problem)
NOT_EMPTY = Limit(lambda value: "" if value else "a list of at least one value, got none")


def convert(kind: Any, value: object) -> Any:  # noqa: ANN401
    """Return a value as the type ``kind``. The message of a ValueError continues "NAME must be ...".

    ``kind`` may be a plain type, a union with None, a Literal, a tuple, and any of these with ranges (Annotated).

    >>> convert(float, 1), convert(int | None, None), convert(tuple[float, float], [0, 1])
    (1.0, None, (0.0, 1.0))
    >>> convert(Annotated[int, at_least(1)], 0)
    Traceback (most recent call last):
    ValueError: at least 1, got 0
    """
    origin, options = get_origin(kind), get_args(kind)
    if origin is Annotated:
        made = convert(options[0], value)
        for extra in options[1:]:
            if isinstance(extra, Limit) and (problem := extra.problem(made)):
                raise ValueError(problem)
        return made
    if origin in (Union, UnionType):
        if value is None and NoneType in options:
            return None
        return convert(next(option for option in options if option is not NoneType), value)
    if origin is Literal:
        if value not in options:
            raise ValueError(choice_problem(value, options))
        return value
    if origin is tuple:
        return _tuple(options, value)
    return _plain(origin or kind, value)


def _plain(kind: type, value: object) -> object:
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            value = float(value)  # also of NumPy's floats, which are not plain
        except OverflowError:
            raise ValueError("a finite number, got one too large") from None
    if kind is Path and isinstance(value, str):
        value = Path(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{WANTED[kind]}, got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"a finite number, got {value}")
    return value


def _tuple(options: Sequence[Any], value: object) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"a list, got {value!r}")
    kinds = [options[0]] * len(value) if options[-1] is Ellipsis else list(options)
    if len(kinds) != len(value):
        raise ValueError(f"a list of {len(kinds)}, got {value!r}")
    return tuple(convert(kind, item) for kind, item in zip(kinds, value, strict=True))
