"""Read and write YAML, and check the types, choices and ranges of settings."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml

from divconq.checks import choice_problem, power_of_two_problem, shown

WANTED = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    dict: "a table of names and values",
    Path: "a path",
}


INT, FLOAT, TIMESTAMP = (f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "timestamp"))
EXPONENT = re.compile(r"^[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$")
DECIMAL = re.compile(r"^[-+]?([0-9]+\.[0-9]*|\.[0-9]+|\.inf|\.Inf|\.INF)$|^\.(nan|NaN|NAN)$")
WHOLE = re.compile(r"^[-+]?[0-9]{1,1000}$")
MOST_CHARACTERS, MOST_VALUES = 200_000, 20_000  # of a text; of a text whose aliases are written out


class _Loader(yaml.SafeLoader):
    """Reads 010 as ten and 1e-5 as a number. In YAML 1.1, 010 is eight, 1:30 is ninety and 1e-5 is a string.

    Dates, and numbers such as 0x10, 1_000 and 1:30, are strings. Keys such as 1e-5 are strings as well.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and EXPONENT.match(key.value) and key.style is None:
                key.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes strings that `_Loader` or another YAML reader would read as numbers."""


_Loader.yaml_implicit_resolvers = {
    first: [rule for rule in rules if rule[0] not in (INT, FLOAT, TIMESTAMP)]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern in ((INT, WHOLE), (FLOAT, DECIMAL), (FLOAT, EXPONENT)):
    _Loader.add_implicit_resolver(_tag, _pattern, list("-+.0123456789"))
_Loader.add_constructor(INT, lambda _, node: int(node.value))
_Dumper.add_implicit_resolver(FLOAT, EXPONENT, list("-+.0123456789"))


def read_yaml(text: str, what: str) -> Any:  # noqa: ANN401
    """Return the value of a YAML text; ``what`` names the text in the error message.

    >>> read_yaml("[1, 2e-3]", "--set ks")
    [1, 0.002]
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError(
            f"{what} must have at most {MOST_CHARACTERS} characters, got {len(text)}; name another file"
        )
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _count_values(node, what, {})
        return loader.construct_document(node)
    except RecursionError:
        raise ValueError(f"{what} is nested too deeply, or contains itself; use fewer levels") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"
        raise ValueError(f"{what} is not YAML{place}; close all brackets and quotes") from error


def _count_values(node: yaml.Node, what: str, known: dict[int, int]) -> int:
    """Return the number of values of a node with all aliases written out.

    Raise ValueError if there are too many, or if a table has a key twice. ``known`` holds the nodes counted before.
    """
    if id(node) in known:
        return known[id(node)]
    count = 1
    if isinstance(node, yaml.MappingNode):
        keys = [(key.tag, key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := sorted(value for tag, value in set(keys) if keys.count((tag, value)) > 1):
            raise ValueError(f"{what} has the key {shown(twice[0])} twice; remove one of them")
        count += sum(_count_values(part, what, known) for pair in node.value for part in pair)
    elif isinstance(node, yaml.SequenceNode):
        count += sum(_count_values(part, what, known) for part in node.value)
    if count > MOST_VALUES:
        raise ValueError(f"{what} must have at most {MOST_VALUES} values, got more; use fewer aliases")
    known[id(node)] = count
    return count


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
    return Limit(lambda value: "" if value >= bound else f"at least {bound}, got {shown(value)}")


def at_most(bound: float) -> Limit:
    """Allow numbers up to ``bound``."""
    return Limit(lambda value: "" if value <= bound else f"at most {bound}, got {shown(value)}")


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
        if not isinstance(value, str) or value not in options:
            raise ValueError(choice_problem(value, options))
        return value
    if origin is tuple:
        return _tuple(options, value)
    return _plain(origin or kind, value)


def _plain(kind: type, value: object) -> object:
    numbers = {int: Integral, float: Real}.get(kind)
    if numbers is not None and not isinstance(value, bool) and isinstance(value, numbers):
        try:
            value = kind(value)  # also of NumPy's numbers, which are not plain
        except OverflowError:
            raise ValueError("a finite number, got one too large") from None
    if kind is Path and isinstance(value, str):
        value = Path(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{WANTED[kind]}, got {shown(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"a finite number, got {value}")
    if not isinstance(value, dict):
        return value
    try:
        return _plain_table(value)
    except RecursionError:
        raise ValueError("a table of a few levels, got one that is nested too deeply") from None


def _plain_table(value: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a copy of a table whose values are those of YAML: numbers, strings, lists and tables."""
    for key in value:
        if not isinstance(key, str):
            raise ValueError(f"a table of names and values, got the name {shown(key)}")
    return {key: _plain_value(item) for key, item in value.items()}


def _plain_value(value: object) -> object:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Real):
        return _plain(int if isinstance(value, Integral) else float, value)
    if isinstance(value, list | tuple):
        return [_plain_value(item) for item in value]
    if isinstance(value, dict):
        return _plain_table(value)
    raise ValueError(f"a table of numbers, strings, lists and tables, got {shown(value)} in it")


def _tuple(options: Sequence[Any], value: object) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"a list, got {shown(value)}")
    kinds = [options[0]] * len(value) if options[-1] is Ellipsis else list(options)
    if len(kinds) != len(value):
        raise ValueError(f"a list of {len(kinds)}, got {shown(value)}")
    return tuple(convert(kind, item) for kind, item in zip(kinds, value, strict=True))
