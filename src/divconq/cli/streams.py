"""Standard output and standard error of a command.

Messages on stderr are a help: if they cannot be written, the command goes on. The result on stdout is what the user
asked for: if it cannot be written, the command fails.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO


class OutputError(OSError):
    """Raised if a result cannot be written to standard output."""


class Messages(io.FileIO):
    """Standard error: text that cannot be written is dropped."""

    def write(self, data: Any) -> int:  # noqa: ANN401
        """Write the bytes if possible."""
        with suppress(OSError):  # a full disk, a closed pipe
            super().write(data)
        return len(data)


class Results(io.FileIO):
    """Standard output: text that cannot be written raises OutputError, or BrokenPipeError if the reader is gone."""

    def write(self, data: Any) -> int:  # noqa: ANN401
        """Write the bytes and return how many were written."""
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(
                f"the result cannot be printed to standard output ({error.strerror}); all files of the command are "
                "complete: free space, or redirect the output to another place"
            ) from error


@contextmanager
def standard_streams() -> Iterator[None]:
    """Use ``Messages`` and ``Results`` inside the block, unless the caller has replaced the standard streams.

    >>> with standard_streams():
    ...     print("written")
    written
    """
    _open_closed_descriptors()
    before = sys.stdout, sys.stderr
    if sys.stdout is sys.__stdout__:
        sys.stdout = _text(io.BufferedWriter(Results(1, "w", closefd=False)), before[0])
    if sys.stderr is sys.__stderr__:
        sys.stderr = _text(Messages(2, "w", closefd=False), before[1])
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def discard_output() -> None:
    """Drop the text that could not be written, which Python would try to write again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _open_closed_descriptors() -> None:
    """Open descriptors 0 to 2 if they are closed, because the next file would get their numbers.

    Standard output is opened for reading, so that writing to it is still an error.
    """
    for number, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # the system gives the lowest number that is free


def _text(raw: Any, like: TextIO | None) -> TextIO:  # noqa: ANN401
    """Return a text stream with the encoding of ``like``, which is None if its descriptor was closed."""
    return io.TextIOWrapper(
        raw,
        encoding=like.encoding if like else "utf-8",
        errors=(like and like.errors) or "backslashreplace",
        line_buffering=like is None or bool(like.line_buffering),
        write_through=True,
    )
