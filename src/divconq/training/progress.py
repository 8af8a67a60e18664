"""The progress bar, and the clock of the phases of an epoch."""

import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from divconq.distributed import is_first


class Progress:
    """A progress bar over all epochs, with epoch, K, loss, R@1, images/s and the time left.

    Epochs may differ in their number of steps. Those to come count as long as the current one, and so do those before
    a resume.
    """

    def __init__(self, epochs: int, batch: int) -> None:
        self.epochs, self.batch, self.begun = epochs, batch, False
        self.bar = tqdm(
            unit=" images",
            unit_scale=True,
            smoothing=0.05,
            file=sys.stderr,
            dynamic_ncols=True,
            disable=None if is_first() else True,
        )
        self.figures: dict[str, str] = {}

    def epoch(self, epoch: int, k: int, steps: int, done: int = 0) -> None:
        """Show a new epoch with ``k`` clusters and ``steps`` steps, of which ``done`` were made before a resume."""
        if not self.begun:
            self.bar.initial = self.bar.n = self.bar.last_print_n = (epoch * steps + done) * self.batch
        self.bar.total = self.bar.n + ((self.epochs - epoch) * steps - done) * self.batch
        self.bar.set_description(f"epoch {epoch + 1}/{self.epochs} K={k}", refresh=not self.begun)
        self.begun = True

    def show(self, record: Mapping[str, Any]) -> None:
        """Show the loss and the scores of a record."""
        names = {"loss": "loss", "recall@1": "R@1", "val_recall@1": "val R@1"}
        self.figures |= {names[name]: f"{record[name]:.3f}" for name in names if name in record}
        self.bar.set_postfix(self.figures, refresh=False)

    def step(self, loss: float | None) -> None:
        """Count one batch; ``loss`` is the latest known loss."""
        if loss is not None:
            self.show({"loss": loss})
        self.bar.update(self.batch)

    def close(self) -> None:
        """Stop updating the bar and leave it on the screen."""
        self.bar.close()


class Clock:
    """Counts the seconds of each phase, starting from those in ``before``.

    >>> clock = Clock({"divide": 2.0})
    >>> with clock("train"):
    ...     list(clock.so_far())
    ['divide', 'train']
    >>> list(clock.seconds)
    ['divide', 'train']
    """

    def __init__(self, before: Mapping[str, float] | None = None) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float, before or {})
        self.phase: tuple[str, float] | None = None

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Add the time of the ``with`` block to ``phase``."""
        self.phase = phase, time.perf_counter()
        try:
            yield
        finally:
            self.seconds = defaultdict(float, self.so_far())
            self.phase = None

    def so_far(self) -> dict[str, float]:
        """Return the seconds of each phase, including the phase in progress."""
        seconds = self.seconds.copy()
        if self.phase is not None:
            phase, start = self.phase
            seconds[phase] += time.perf_counter() - start
        return dict(seconds)
