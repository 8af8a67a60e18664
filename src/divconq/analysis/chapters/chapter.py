"""The parts of a report chapter."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from divconq.analysis.drawing import Figure
from divconq.analysis.study import Study

Result = TypeVar("Result")


@dataclass(frozen=True)
class Plot(Generic[Result]):
    """A figure of a chapter: its caption, and the function that draws it or returns None."""

    caption: str
    draw: Callable[[Result], Figure | None]


@dataclass(frozen=True)
class Chapter(Generic[Result]):
    """One chapter of the report.

    ``compute`` returns a dataclass (or a tuple of them) of plain values: numbers, strings, tuples, ``ImageRef``. It
    returns None or an empty tuple if there is nothing to show, and calls ``study.note`` with the reason. ``name`` is
    the key of the result in analysis.json, the id of the section, and the variable of the result in ``template``.
    """

    name: str
    title: str
    template: Path
    compute: Callable[[Study], Result | None]
    plots: Mapping[str, Plot[Result]] = field(default_factory=dict)
    summary: Callable[[Result], Iterable[str]] = lambda result: ()
