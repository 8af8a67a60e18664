"""One line of ``metrics.jsonl``: the record of an epoch."""

import json
import math
from typing import Any

from divconq.checks import shown

OLD_KEYS = {"lonely": "without_positive", "waiting": "left_out"}


def parse_record(line: str, *, after: int = 0) -> dict[str, Any]:
    """Return the record of an epoch later than ``after``, with current key names. Values of None are left out.

    Raise JSONDecodeError if the line is not JSON, and ValueError if it is not such a record.

    >>> parse_record('{"epoch": 2, "lonely": 3, "seconds": {"train": 1.5}}', after=1)
    {'epoch': 2, 'without_positive': 3, 'seconds': {'train': 1.5}}
    """
    try:
        record = json.loads(line)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(record, dict):
        raise ValueError(f"it must be a table, got {shown(record)}")
    record = {OLD_KEYS.get(key, key): value for key, value in record.items() if value is not None}
    epoch = record.get("epoch")
    if not isinstance(epoch, int) or isinstance(epoch, bool) or epoch <= after:
        raise ValueError(f"its epoch must be a whole number above {after}, got {shown(epoch)}")
    for name, value in record.items():
        seconds = name == "seconds" and isinstance(value, dict) and all(map(_is_number, value.values()))
        if not seconds and (name == "seconds" or not _is_number(value)):
            wanted = "a table of numbers" if name == "seconds" else "a number"
            raise ValueError(f"its {name} must be {wanted}, got {shown(value)}")
    return record


def _is_number(value: object) -> bool:
    """Return whether a value is a number that fits into a float; a loss may be NaN in an older log."""
    return isinstance(value, float) or (type(value) is int and abs(value) < math.ldexp(1, 1000))
