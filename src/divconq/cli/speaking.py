"""What a command says: of several processes only the first speaks."""

import os
import sys
from typing import NoReturn, TextIO


def say(text: str) -> None:
    """Tell a person what goes on, beside what the command prints."""
    if speaks():
        print(text, file=sys.stderr)


def fail(message: str, code: int, *, all_say: bool = False) -> NoReturn:
    """End the command with one sentence and an exit code."""
    if all_say or speaks("LOCAL_RANK"):
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
    """A warning as one sentence, without the place in the code."""
    if speaks("LOCAL_RANK"):
        print(f"divconq: warning: {message}", file=sys.stderr)


def speaks(number: str = "RANK") -> bool:
    """Whether this process talks: the first of all that torchrun has started, or of those of each machine."""
    return processes() == 1 or os.environ.get(number) == "0"


def processes() -> int:
    """How many torchrun has started; without it there is this one."""
    return int(os.environ.get("WORLD_SIZE", "1"))
