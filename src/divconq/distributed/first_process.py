"""Work that only the first process does.

``on_first(function, ...)`` calls a function on rank 0 and gives its result to every rank. ``@first_only`` is for
functions with side effects and no result, such as writing a file. ``is_first()`` is the condition behind both.
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch.distributed as dist

from divconq.distributed.group import connection_errors, rank, size

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

USER_ERRORS = (ValueError, OSError, FloatingPointError)  # their message is written for the user


def is_first() -> bool:
    """Return whether this is the first process, or the only one.

    >>> is_first()
    True
    """
    return rank() == 0


def first_only(function: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """Run the decorated function on rank 0 only. The other ranks skip it and do not wait.

    >>> first_only(lambda: print("written"))()
    written
    """

    @functools.wraps(function)
    def on_rank_0(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        if is_first():
            function(*args, **kwargs)

    return on_rank_0


def on_first(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """Call ``function`` on rank 0 and return its result on every rank. An exception is raised on every rank.

    >>> on_first(max, 2, 3)
    3
    """
    if size() == 1:
        return function(*args, **kwargs)
    result, error = _call(function, *args, **kwargs) if is_first() else (None, None)
    sent: list[Any] = [(result, error and _to_send(error))]
    with connection_errors():
        dist.broadcast_object_list(sent, src=0)
    _raise_on_all(error, [sent[0][1]])
    received: Result = sent[0][0]
    return received


def on_every(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """Call ``function`` on every rank and return its own result. If it fails on one rank, all ranks raise.

    ``function`` must not wait for other ranks.

    >>> on_every(max, 2, 3)
    3
    """
    if size() == 1:
        return function(*args, **kwargs)
    result, error = _call(function, *args, **kwargs)
    errors: list[Any] = [None] * size()
    with connection_errors():
        dist.all_gather_object(errors, error and _to_send(error))
    _raise_on_all(error, errors)
    return result  # type: ignore[return-value]


def _call(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> tuple[Result | None, Exception | None]:
    try:
        return function(*args, **kwargs), None
    except Exception as error:
        return None, error


def _to_send(error: Exception) -> tuple[type[Exception], str]:
    """Return the class and message of an error. Classes other than ``USER_ERRORS`` become RuntimeError."""
    kind = next((kind for kind in USER_ERRORS if isinstance(error, kind)), None)
    return (kind, str(error)) if kind else (RuntimeError, f"{type(error).__name__}: {error}")


def _raise_on_all(own: Exception | None, errors: list[tuple[type[Exception], str] | None]) -> None:
    if own is not None:
        raise own
    for error in errors:
        if error is not None:
            raise error[0](error[1])
