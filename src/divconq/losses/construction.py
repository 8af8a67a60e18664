"""Build a loss or a miner from a class and keyword arguments. Errors list the accepted arguments."""

import inspect
from collections.abc import Collection, Iterable, Mapping

from torch import nn

from divconq.checks import did_you_mean


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


def construct(name: str, cls: type[nn.Module], arguments: Mapping[str, object], **sizes: int) -> nn.Module:
    """Return ``cls(**arguments)``; an error of the class becomes a ``ValueError``.

    The class receives only those of ``sizes``, such as ``num_classes``, that it requires.

    >>> from divconq.losses.triplet import TripletLoss
    >>> construct("triplet", TripletLoss, {"alpha": 0.1}, num_classes=5).alpha
    0.1
    """
    accepted = accepted_arguments(cls)
    required = [key for key, p in accepted.items() if p.default is inspect.Parameter.empty]
    arguments = {key: sizes[key] for key in sizes if key in required} | dict(arguments)
    try:
        return cls(**arguments)
    except (TypeError, ValueError, AssertionError, NotImplementedError) as error:
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items()) or "no arguments"
        reason = str(error) or type(error).__name__
        raise ValueError(f"{name} could not be made with {given}: {reason}") from error
