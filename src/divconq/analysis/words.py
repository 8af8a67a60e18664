"""Numbers as text, for templates and sentences."""

import math


def number(value: float | None, digits: int = 2) -> str:
    """Format a number with ``digits`` decimals; a dash if it is None or not finite.

    >>> number(0.12345), number(float("nan")), number(1234, 0), number(None)
    ('0.12', '–', '1,234', '–')
    """
    return "–" if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"


def percent(share: float | None, digits: int = 1) -> str:
    """Format a share in percent; a dash if it is None or not finite.

    >>> percent(0.7812), percent(float("nan"))
    ('78.1%', '–')
    """
    return "–" if share is None or not math.isfinite(share) else f"{100 * share:.{digits}f}%"


def count(n: int, one: str, more: str | None = None) -> str:
    """Format a number of things.

    >>> count(1, "class", "classes"), count(2400, "image")
    ('1 class', '2,400 images')
    """
    return f"{n:,} {one if n == 1 else more or one + 's'}"


def duration(seconds: float) -> str:
    """Format a time in seconds, minutes or hours; a dash for 0.

    >>> duration(45), duration(150), duration(9000), duration(0)
    ('45 s', '2.5 min', '2.5 h', '–')
    """
    if seconds <= 0:
        return "–"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def difference(share: float) -> str:
    """Format the difference of two shares in percentage points.

    >>> difference(0.0312), difference(-0.5), difference(0.0)
    ('3.1 points above', '50.0 points below', 'the same as')
    """
    points = round(100 * share, 1)
    return "the same as" if points == 0 else f"{abs(points):.1f} points {'above' if points > 0 else 'below'}"
