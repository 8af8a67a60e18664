"""Ctrl-C and SIGTERM: the run finishes its step, writes a checkpoint and stops."""

import os
import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import Any


class Stopped(KeyboardInterrupt):
    """Raised when a signal has stopped the run; ``code`` is the exit code of the process.

    >>> Stopped(signal.SIGTERM).code
    143
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.code = 128 + number


def exit_code(stopped: KeyboardInterrupt) -> int:
    """Return the exit code of a process that was stopped; 130 for Ctrl-C.

    >>> exit_code(Stopped(signal.SIGTERM)), exit_code(KeyboardInterrupt())
    (143, 130)
    """
    return stopped.code if isinstance(stopped, Stopped) else 128 + signal.SIGINT


class StopSignals:
    """Context manager that records SIGINT and SIGTERM, so the run can stop after its current step.

    A second signal raises ``Stopped`` immediately; so does the first one while ``patient`` is False. Python delivers
    signals to the main thread only: in other threads this class does nothing.

    >>> with StopSignals() as stop:
    ...     stop.patient = True
    ...     signal.raise_signal(signal.SIGTERM)
    ...     stop.wished
    True
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self.patient = False
        self.before: dict[int, Any] = {}

    @property
    def wished(self) -> bool:
        """Return whether a signal has asked the run to stop."""
        return self.number is not None

    def stopped(self) -> Stopped:
        """Return the exception to raise once the checkpoint is written."""
        return Stopped(self.number or signal.SIGINT)

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self._record)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _record(self, number: int, _: FrameType | None) -> None:
        at_once = self.wished or not self.patient
        self.number = number
        if at_once:
            raise self.stopped()
        with suppress(OSError):  # print is not safe inside a signal handler
            os.write(2, b"\nstopping after this step; press again to stop immediately\n")
