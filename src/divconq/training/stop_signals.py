"""Ctrl-C and SIGTERM: a run finishes its step, keeps its state and stops."""

import os
import signal
import threading
from types import FrameType
from typing import Any


class Stopped(KeyboardInterrupt):
    """A run was told to stop by a signal; ``code`` is the exit code this calls for.

    >>> Stopped(signal.SIGTERM).code
    143
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.code = 128 + number


class StopSignals:
    """Within ``with``, notes that SIGINT or SIGTERM asked to stop, for a run that ends after its step.

    The second signal raises ``Stopped`` at once, and so does any before ``patient`` is set. Outside of the main
    thread, which alone is told of signals, it does nothing.

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
        """Whether the run is to stop."""
        return self.number is not None

    def stopped(self) -> Stopped:
        """What to raise once the state is kept."""
        return Stopped(self.number or signal.SIGINT)

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        at_once = self.wished or not self.patient
        self.number = number
        if at_once:
            raise self.stopped()
        os.write(
            2, b"\nstopping after this step; once more stops at once\n"
        )  # print might be in the midst of it
