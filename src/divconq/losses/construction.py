"""Build a loss or a miner from a class and keyword arguments. Errors list the accepted arguments."""

import inspect
import math
from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor, nn

from divconq.checks import did_you_mean, shown


def accepted_arguments(cls: type[nn.Module]) -> dict[str, inspect.Parameter]:
    """Return the keyword arguments of a class by name, including those of its base classes.

    >>> from divconq.losses.margin import MarginLoss
    >>> list(accepted_arguments(MarginLoss))
    ['alpha', 'beta', 'num_classes', 'sampling_dim', 'without_replacement', 'equal_pairs']
    """
    accepted: dict[str, inspect.Parameter] = {}
    for base in cls.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        accepted |= {p.name: p for p in parameters if p.kind in by_name and p.name not in accepted}
        if all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in parameters):
            break
    # Every pair loss of pytorch-metric-learning sets this argument for its base class.
    accepted.pop("mat_based_loss", None)
    return accepted


def check_arguments(name: str, arguments: Iterable[str], accepted: Collection[str]) -> None:
    """Raise ValueError for an unknown argument, and suggest the nearest known one.

    >>> check_arguments("triplet", {"alhpa": 0.1}, ["alpha"])
    Traceback (most recent call last):
    ValueError: triplet has no argument 'alhpa', it accepts alpha; did you mean 'alpha'?
    """
    for argument in arguments:
        if argument not in accepted:
            raise ValueError(
                f"{name} has no argument '{argument}', it accepts {', '.join(accepted) or 'none'}"
                f"{did_you_mean(argument, accepted)}"
            )


def check_types(
    name: str, arguments: Mapping[str, object], accepted: Mapping[str, inspect.Parameter]
) -> None:
    """Raise ValueError for a number that is not finite, and for a value that must be a number or a bool and is not.

    An argument must be a number if its default is one.

    >>> alpha = inspect.Parameter("alpha", inspect.Parameter.KEYWORD_ONLY, default=0.2)
    >>> check_types("triplet", {"alpha": "wide"}, {"alpha": alpha})
    Traceback (most recent call last):
    ValueError: alpha of triplet must be a number, got 'wide'; the default is 0.2
    """
    for key, value in arguments.items():
        default = accepted[key].default
        if problem := _type_problem(value, default):
            hint = f"; the default is {default}" if isinstance(default, int | float) else ""
            raise ValueError(f"{key} of {name} must be {problem}, got {shown(value)}{hint}")


def _type_problem(value: object, default: object) -> str:
    switch = isinstance(value, bool)
    if isinstance(default, bool):
        return "" if switch else "true or false"
    if isinstance(default, int | float) and (switch or not isinstance(value, int | float)):
        return "a number"
    return "a finite number" if isinstance(value, int | float) and not _is_finite(value) else ""


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False


def construct(name: str, cls: type[nn.Module], arguments: Mapping[str, object], **sizes: int) -> nn.Module:
    """Return ``cls(**arguments)``; an error of the class becomes a ``ValueError``.

    The class receives only those of ``sizes``, such as ``num_classes``, that it requires.

    >>> from divconq.losses.triplet import TripletLoss
    >>> construct("triplet", TripletLoss, {"alpha": 0.1}, num_classes=5).alpha
    0.1
    """
    accepted = accepted_arguments(cls)
    check_types(name, {key: value for key, value in arguments.items() if key in accepted}, accepted)
    required = [key for key, p in accepted.items() if p.default is inspect.Parameter.empty]
    arguments = {key: sizes[key] for key in sizes if key in required} | dict(arguments)
    for key, size in sizes.items():
        _check_size(name, key, arguments.get(key, size), size)
    try:
        return cls(**arguments)
    except Exception as error:
        raise _refusal(f"{name} could not be made with", arguments, error) from error


def _check_size(name: str, key: str, given: object, size: int) -> None:
    """Raise ValueError for a number of classes below, or a dimension other than, that of the run."""
    if isinstance(given, int) and (given >= size if key == "num_classes" else given == size):
        return
    wanted = f"at least {size}" if key == "num_classes" else str(size)
    raise ValueError(
        f"{key} of {name} must be {wanted}, as in this run, got {shown(given)}; leave it out, and it is set"
    )


def try_loss(name: str, loss: nn.Module, arguments: Mapping[str, object], dim: int, per_class: int) -> None:
    """Raise ValueError if a loss fails on a small batch of two classes, or does not return a finite number.

    >>> from divconq.losses.triplet import TripletLoss
    >>> try_loss("triplet", TripletLoss(), {}, dim=8, per_class=4)
    """
    generator = torch.Generator().manual_seed(0)
    f = torch.randn(2 * per_class, dim, generator=generator, requires_grad=True)
    labels = torch.arange(2).repeat_interleave(per_class)
    try:
        with torch.random.fork_rng(devices=()):
            value = loss(nn.functional.normalize(f), labels)
        if not isinstance(value, Tensor) or value.ndim or not bool(value.isfinite()):
            given = value.tolist() if isinstance(value, Tensor) else value
            raise ValueError(f"the loss of a batch must be a finite number, got {shown(given)}")
    except Exception as error:
        raise _refusal(f"{name} fails on a small batch with", arguments, error) from error


def _refusal(problem: str, arguments: Mapping[str, object], error: Exception) -> ValueError:
    given = ", ".join(f"{key}={shown(value)}" for key, value in arguments.items()) or "no arguments"
    reason = next(iter(str(error).splitlines()), "") or type(error).__name__
    return ValueError(f"{problem} {given}: {reason}")
