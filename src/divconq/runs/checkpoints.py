"""Checkpoint files: the last two of a run and its best epoch, each checked when it is read.

A checkpoint is what ``torch.save`` writes, followed by its SHA-256, which ``torch.load`` passes over and ``load``
looks at first. So there is one file to put in place, and never one without its checksum.
"""

import hashlib
import os
import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from divconq.distributed.collectives import first_only, rank
from divconq.io.atomic import sync_folder, temporary_name, write_atomically

FORMAT = "divconq checkpoint 3"
READABLE = ("divconq checkpoint 2", FORMAT)
LAST, PREVIOUS, BEST = "last.pt", "previous.pt", "best.pt"
SUM, BLOCK = hashlib.sha256().digest_size, 1 << 20
REMEDY = "copy it again from where it was made, or train anew"

State: TypeAlias = dict[str, Any]


class Checkpoints:
    """Writes a run's checkpoints, ``minutes`` or ``steps`` apart; the best epoch waits in memory for the next.

    So ``last.pt`` is never newer than the best epoch it knows of, and a run that goes on from it finds its best
    epoch on disk or comes by it again. Files are written by a thread beside the training, which goes on from a copy;
    at the end of ``with`` it has ended. Of several processes only the first writes.
    """

    def __init__(self, folder: Path, minutes: float, steps: int | None = None) -> None:
        self.folder, self.minutes, self.steps = folder, minutes, steps
        self.best: State | None = None
        self.first = True
        self.writer, self.writing = ThreadPoolExecutor(1), Future[None]()
        self.writing.set_result(None)
        self._begin()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.writer.shutdown()
        if kind is None:
            self.finish()

    def step(self) -> bool:
        """Count a step; whether it is time for a checkpoint. If the last could not be written, its error is raised."""
        self.taken += 1
        if self.writing.done():
            self.finish()
        return self.due()

    def due(self) -> bool:
        """Whether the minutes are over or the steps are made."""
        made = self.steps is not None and self.taken >= self.steps
        return rank() == 0 and (made or time.monotonic() >= self.time)

    @first_only
    def offer(self, state: State, *, best: bool, now: bool) -> None:
        """An epoch has ended: write its state if it is the first, if it is time, or ``now``; keep the ``best``."""
        if best:
            self.best = _copy({name: part for name, part in state.items() if name != "optimizer"})
        if now or self.first or self.due():
            self.write(state)

    @first_only
    def write(self, state: State) -> None:
        """Begin to write the best epoch, if there is a new one, and then this state."""
        self.finish()
        best, self.best = self.best, None
        self.writing = self.writer.submit(self._write, best, _copy(state))
        self.first = False
        self._begin()

    def finish(self) -> None:
        """Wait until what was begun is on disk."""
        self.writing.result()

    def _write(self, best: State | None, last: State) -> None:
        if best is not None:
            save(self.folder, "best", best)
        save(self.folder, "last", last)

    def _begin(self) -> None:
        self.time, self.taken = time.monotonic() + 60 * self.minutes, 0


def _copy(state: State) -> State:
    """The state as it is now, in main memory."""
    copied: State = tree_map_only(Tensor, lambda x: x.detach().to("cpu", copy=True), state)
    return copied


def exist(folder: Path) -> bool:
    """Whether a run has written a checkpoint to go on from."""
    return any((folder / name).exists() for name in (LAST, PREVIOUS))


def save(folder: Path, which: Literal["last", "best"], state: State) -> None:
    """Write a checkpoint; the last one before it is kept as ``previous.pt``."""
    last = folder / LAST

    def write(path: Path) -> None:
        _write_archive(path, {"format": FORMAT, **state})
        if which == "last" and last.exists():
            _keep(last, folder / PREVIOUS)  # only now, when there is another

    write_atomically(folder / f"{which}.pt", write)


def load(folder: Path, which: Literal["last", "best"] = "last") -> State:
    """A checkpoint's contents, on the CPU; nothing in the file is executed.

    If ``last.pt`` is damaged, a warning says so and the contents are those of the one before it.
    """
    return read(folder / BEST) if which == "best" else _newest(folder)[0]


def resume(folder: Path) -> State:
    """The contents to go on from, as ``load``; a damaged ``last.pt`` gives way to the one before it."""
    state, file = _newest(folder)
    if file.name == PREVIOUS:
        file.replace(folder / LAST)  # what comes next would push out the one that is good
        sync_folder(folder)
    return state


def read(path: Path) -> State:
    """The contents of one file; ValueError unless it is as it was written."""
    if not path.is_file():
        raise ValueError(
            f"{path.parent} holds no {path.name}: it stopped before its first checkpoint; train it anew"
        )
    try:
        with path.open("rb") as file:
            if _checksum(file, path.stat().st_size - SUM) != file.read():
                raise ValueError("its checksum is another")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile file fails in many ways
        raise ValueError(f"{path} is damaged or not a checkpoint ({_reason(error)}); {REMEDY}") from error
    if not isinstance(state, dict) or state.get("format") not in READABLE:
        raise ValueError(f"{path} is not a checkpoint of this version of divconq; {REMEDY}")
    return state


def algorithm_state(state: State) -> State:
    """Return the state of ``DivideAndConquer`` in a checkpoint; format 2 kept its parts separately."""
    if "divide_and_conquer" in state:
        algorithm: State = state["divide_and_conquer"]
        return algorithm
    parts = {
        f"objective.{part}.{name}": value for part in ("masks", "loss") for name, value in state[part].items()
    }
    return {
        **parts,
        "_extra_state": {
            "clusters": state["partition"],
            "k": state["k"],
            "epoch": state["epoch"],
            "divided_at": state["epoch"] if state["step"] else None,  # a division comes before the first step
        },
    }


def masks_state(state: State) -> State:
    """Return the state of the masks in a checkpoint of any readable format."""
    if "divide_and_conquer" not in state:
        masks: State = state["masks"]
        return masks
    prefix, algorithm = "objective.masks.", state["divide_and_conquer"]
    return {name.removeprefix(prefix): value for name, value in algorithm.items() if name.startswith(prefix)}


def clusters_state(state: State) -> Tensor:
    """Return the cluster of every training image in a checkpoint of any readable format."""
    new = "divide_and_conquer" in state
    clusters: Tensor = state["divide_and_conquer"]["_extra_state"]["clusters"] if new else state["partition"]
    return clusters


def _newest(folder: Path) -> tuple[State, Path]:
    """The last checkpoint that is good, and its file."""
    last, previous = folder / LAST, folder / PREVIOUS
    try:
        return read(last), last
    except ValueError as error:
        if not previous.exists():
            raise
        reason = str(error).partition(";")[0]
        try:
            state = read(previous)
        except ValueError as other:
            raise ValueError(f"{reason}, and the one before it cannot be used either: {other}") from other
    warnings.warn(f"{reason}; the one before it is used, {previous.name}", stacklevel=3)
    return state, previous


def _write_archive(path: Path, state: State) -> None:
    with path.open("w+b") as file:
        try:
            torch.save(state, file)
            size = file.tell()
            file.seek(0)
            file.write(_checksum(file, size))
            file.flush()
            os.fsync(file.fileno())
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):  # a full disk: torch complains of the archive
                raise error.__context__ from None
            raise


def _checksum(file: BinaryIO, size: int) -> bytes:
    """The SHA-256 of the next ``size`` bytes."""
    digest = hashlib.sha256()
    while block := file.read(max(0, min(size, BLOCK))):
        digest.update(block)
        size -= len(block)
    return digest.digest()


def _keep(file: Path, name: Path) -> None:
    """Give a file a second name, so that it is there at any time under one of them."""
    link = temporary_name(name)
    try:
        os.link(file, link)
        link.replace(name)
    except OSError:  # no links on this disk
        file.replace(name)
    finally:
        link.unlink(missing_ok=True)  # it stays where both were the same file already


def _reason(error: Exception) -> str:
    return str(error) if type(error) is ValueError else type(error).__name__
