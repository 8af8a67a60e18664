"""Tables in the terminal, laid out by rich."""

import io
import sys
from collections.abc import Sequence
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDE = 10_000  # lines are never wrapped, so the output can be searched


def aligned(rows: Sequence[Sequence[str]], left: int = 1, *, head: bool = True) -> list[str]:
    """Return the lines of a table; the first ``left`` columns are aligned to the left, the others to the right.

    The lines are plain text. In a terminal the first row is bold, unless ``head`` is False.

    >>> aligned([("", "R@1"), ("last", "8.25"), ("best", "12.50")])
    ['        R@1', 'last   8.25', 'best  12.50']
    """
    table = Table.grid(padding=(0, 2, 0, 0))
    for column in range(len(rows[0]) if rows else 0):
        table.add_column(justify="left" if column < left else "right", no_wrap=True)
    for number, row in enumerate(rows):
        table.add_row(*map(Text, row), style="bold" if head and number == 0 else None)
    colours: Literal["standard"] | None = "standard" if sys.stdout.isatty() else None
    console = Console(file=io.StringIO(), width=WIDE, color_system=colours)
    with console.capture() as printed:
        console.print(table)
    return [line.rstrip() for line in printed.get().splitlines()]
