"""Whether the processes of a run are alive: each gives signs, and ends if those of another stay away."""

import os
import sys
import threading
import time
from datetime import timedelta
from typing import Any, NoReturn

import torch.distributed as dist

stores: Any = dist  # where torch keeps them, unknown to type checkers

SIGNS = 8  # in the time after which a rank counts as dead
REMEDY = (
    "torchrun --max-restarts 3 starts all of them again from the last checkpoint by itself; "
    "by hand, give the same command with --resume RUN"
)


class SignsOfLife(threading.Thread):
    """Gives signs of life of this rank, and ends the process if those of another stay away.

    What waits for a dead rank may wait for ever, deep inside a library: a thread beside it still can end it. To
    be slow is no reason: a rank gives signs while it decodes or divides.
    """

    def __init__(self, rank: int, size: int, attempt: str, patience: float) -> None:
        super().__init__(daemon=True)
        self.patience, self.over = patience, threading.Event()
        self.mine, self.all = f"life of {rank}", [f"life of {r}" for r in range(size)]
        wait = timedelta(seconds=patience)
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self.board = stores.PrefixStore(
            attempt, stores.TCPStore(address, port, is_master=False, timeout=wait)
        )

    def start(self) -> None:
        """Give the first sign, so that there is one to be found, then one after another."""
        self.board.set(self.mine, "0")
        super().start()

    def end(self) -> None:
        """Give no more signs. A thread that is inside the store when Python ends would take the process down."""
        self.over.set()
        if self.is_alive():
            self.join(self.patience)

    def run(self) -> None:
        """Give signs, and look for those of the others, until it is over."""
        signs: list[bytes] = [b""] * len(self.all)
        heard, count = [time.monotonic()] * len(self.all), 0
        while not self.over.wait(self.patience / SIGNS):
            count += 1
            try:
                self.board.set(self.mine, str(count))
                seen = self.board.multi_get(self.all)
            except RuntimeError:
                if not self.over.wait(self.patience / SIGNS):  # all may be leaving
                    self._end("the process that all ranks report to has ended")
                return
            now = time.monotonic()
            heard = [now if new != old else when for new, old, when in zip(seen, signs, heard, strict=True)]
            signs = seen
            silent = [r for r, when in enumerate(heard) if now - when > self.patience]
            if silent:
                named = f"rank {', '.join(map(str, silent))} of {len(self.all)}"
                self._end(f"{named} has given no sign of life for {self.patience:g} seconds")

    def _end(self, reason: str) -> NoReturn:
        print(f"divconq: error: {reason}; {REMEDY}", file=sys.stderr, flush=True)
        os._exit(1)
