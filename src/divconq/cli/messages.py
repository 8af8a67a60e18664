"""Messages of a command on stderr. Only the first process prints."""

import os
import sys
from typing import NoReturn, TextIO


def say(text: str) -> None:
    """Print a progress message."""
    if is_first_process():
        print(text, file=sys.stderr, flush=True)


def fail(message: str, code: int, *, every_process: bool = False) -> NoReturn:
    """Print an error message and exit."""
    if every_process or is_first_process("LOCAL_RANK"):
        print(f"divconq: error: {message}", file=sys.stderr)
    raise SystemExit(code)


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning without its source line. Replaces ``warnings.showwarning``."""
    if is_first_process("LOCAL_RANK"):
        print(f"divconq: warning: {message}", file=sys.stderr)


def is_first_process(variable: str = "RANK") -> bool:
    """Return whether this is the first process of all (RANK) or of its machine (LOCAL_RANK)."""
    return process_count() == 1 or os.environ.get(variable) == "0"


def process_count() -> int:
    """Return the number of processes that torchrun started, or 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))
