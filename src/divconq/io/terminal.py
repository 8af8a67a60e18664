"""Tables in the terminal."""

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """The lines of a table; its first ``left`` columns begin below each other, all others end so.

    >>> aligned([("", "R@1"), ("last", "8.25"), ("best", "12.50")])
    ['        R@1', 'last   8.25', 'best  12.50']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
