"""Heartbeat: every process reports that it is alive, and exits when another process stops reporting.

``torchrun`` ends all processes of a machine when one of them dies. It does not notice a frozen process or
a machine without power: the other processes would wait for the collective timeout of one hour.
"""

import os
import sys
import threading
import time
from datetime import timedelta
from typing import Any, NoReturn

import torch.distributed as dist

stores: Any = dist  # torch.distributed exports its stores without type annotations

BEATS_PER_TIMEOUT = 8
REMEDY = (
    "torchrun --max-restarts 3 restarts all processes from the last checkpoint; "
    "without it, run the same command with --resume RUN"
)


class Heartbeat(threading.Thread):
    """Thread that sends the heartbeat of this rank and ends the process when another rank's heartbeat stops.

    The main thread may wait forever for a dead rank inside a library; this thread can still end the process.
    Slow ranks are not killed: the heartbeat runs in its own thread, also while the rank decodes images or divides.
    """

    def __init__(self, rank: int, size: int, attempt: str, timeout: float) -> None:
        super().__init__(daemon=True)
        self.timeout, self.stopped = timeout, threading.Event()
        self.own_key, self.keys = f"heartbeat of {rank}", [f"heartbeat of {r}" for r in range(size)]
        wait = timedelta(seconds=timeout)
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self.store = stores.PrefixStore(
            attempt, stores.TCPStore(address, port, is_master=False, timeout=wait)
        )

    def start(self) -> None:
        """Send the first heartbeat, then start the thread."""
        self.store.set(self.own_key, "0")
        super().start()

    def stop(self) -> None:
        """Stop the thread and wait for it: Python crashes if it exits while a thread uses the store."""
        self.stopped.set()
        if self.is_alive():
            self.join(self.timeout)

    def run(self) -> None:
        """Send heartbeats and check those of the other ranks until ``stop`` is called."""
        beats: list[bytes] = [b""] * len(self.keys)
        last_seen, count = [time.monotonic()] * len(self.keys), 0
        while not self.stopped.wait(self.timeout / BEATS_PER_TIMEOUT):
            count += 1
            try:
                self.store.set(self.own_key, str(count))
                received = self.store.multi_get(self.keys)
            except RuntimeError:
                if not self.stopped.wait(self.timeout / BEATS_PER_TIMEOUT):  # all ranks may be leaving
                    self._exit("the process that holds the heartbeats of all ranks has ended")
                return
            now = time.monotonic()
            last_seen = [
                now if new != old else seen for new, old, seen in zip(received, beats, last_seen, strict=True)
            ]
            beats = received
            dead = [r for r, seen in enumerate(last_seen) if now - seen > self.timeout]
            if dead:
                ranks = f"rank {', '.join(map(str, dead))} of {len(self.keys)}"
                self._exit(f"no heartbeat from {ranks} for {self.timeout:g} seconds")

    def _exit(self, reason: str) -> NoReturn:
        try:
            print(f"divconq: error: {reason}; {REMEDY}", file=sys.stderr, flush=True)
        finally:  # also if stderr cannot be written
            os._exit(1)
