"""Checkpoint files of a run: the last two and the best epoch, each with a checksum.

A checkpoint file is the output of ``torch.save`` followed by its SHA-256. ``torch.load`` ignores these extra bytes;
``load`` checks them first. A checkpoint and its checksum are one file, so one cannot exist without the other.
"""

import hashlib
import math
import os
import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from divconq.distributed import first_only
from divconq.io.atomic import sync_folder, temporary_name, write_atomically
from divconq.runs.checkpoint_types import check_types

FORMAT = "divconq checkpoint 4"
TRAINED_WHILE_K_IS_1 = ("divconq checkpoint 3", "divconq checkpoint 2")  # see with_resting_mask
READABLE = (FORMAT, *TRAINED_WHILE_K_IS_1)  # format 2 has the entries that algorithm_state translates
LAST, PREVIOUS, BEST = "last.pt", "previous.pt", "best.pt"
CHECKSUM_BYTES, BLOCK = hashlib.sha256().digest_size, 1 << 20
REMEDY = "copy it again from its source, or start a new run"

State: TypeAlias = dict[str, Any]


class Checkpoints:
    """Writes the checkpoints of a run every ``minutes`` or every ``steps``, whichever comes first.

    A new best epoch stays in memory and is written just before the next ``last.pt``, so ``last.pt`` never refers to
    a best epoch that is not on disk. A thread writes the files from a copy while training continues; leaving the
    ``with`` block waits for it. Only the first process writes.
    """

    def __init__(self, folder: Path, minutes: float, steps: int | None = None) -> None:
        self.folder, self.minutes, self.steps = folder, minutes, steps
        self.best: State | None = None
        self.none_yet = True
        self.writer, self.writing = ThreadPoolExecutor(1), Future[None]()
        self.writing.set_result(None)
        self.next_time = self.steps_left = math.inf  # other processes never write
        self._restart()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.writer.shutdown()
        if kind is None:
            self.finish()

    def step(self) -> bool:
        """Count a step and return whether a checkpoint is due. Raises the error of the last write if it failed."""
        self.steps_left -= 1
        if self.writing.done():
            self.finish()
        return self.due()

    def due(self) -> bool:
        """Return whether the minutes have passed or the steps are done."""
        return self.steps_left <= 0 or time.monotonic() >= self.next_time

    @first_only
    def offer(self, state: State, *, best: bool, now: bool) -> None:
        """Write the state at the end of an epoch if it is the first one, if a checkpoint is due, or if ``now``.

        With ``best``, keep a copy without the optimizer for ``best.pt``.
        """
        if best:
            self.best = _copy({name: part for name, part in state.items() if name != "optimizer"})
        if now or self.none_yet or self.due():
            self.write(state)

    @first_only
    def write(self, state: State) -> None:
        """Start writing the new best epoch, if there is one, and then this state."""
        self.finish()
        best, self.best = self.best, None
        self.writing = self.writer.submit(self._write, best, _copy(state))
        self.none_yet = False
        self._restart()

    def finish(self) -> None:
        """Wait until the files are on disk."""
        self.writing.result()

    def _write(self, best: State | None, last: State) -> None:
        if best is not None:
            save(self.folder, "best", best)
        save(self.folder, "last", last)

    @first_only
    def _restart(self) -> None:
        self.next_time = time.monotonic() + 60 * self.minutes
        self.steps_left = math.inf if self.steps is None else self.steps


def _copy(state: State) -> State:
    """Return a copy of the state on the CPU."""
    copied: State = tree_map_only(Tensor, lambda x: x.detach().to("cpu", copy=True), state)
    return copied


def exist(folder: Path) -> bool:
    """Return whether a run folder has a checkpoint to resume from."""
    return any((folder / name).exists() for name in (LAST, PREVIOUS))


def save(folder: Path, which: Literal["last", "best"], state: State) -> None:
    """Write a checkpoint. The ``last.pt`` that it replaces becomes ``previous.pt``."""
    last = folder / LAST

    def write(path: Path) -> None:
        _write_archive(path, {"format": FORMAT, **state})
        if which == "last" and last.exists():
            _link(last, folder / PREVIOUS)  # only after the new file is complete

    write_atomically(folder / f"{which}.pt", write)


def load(folder: Path, which: Literal["last", "best"] = "last") -> State:
    """Return the contents of a checkpoint, on the CPU. Nothing in the file is executed.

    If ``last.pt`` is damaged, the function warns and returns the contents of ``previous.pt``.
    """
    return read(folder / BEST) if which == "best" else _newest(folder)[0]


def resume(folder: Path) -> State:
    """Return the contents to resume from, as ``load`` does. A damaged ``last.pt`` is replaced by ``previous.pt``."""
    state, file = _newest(folder)
    if (folder / BEST).exists():
        try:
            read(folder / BEST)
        except ValueError as error:
            reason = str(error).partition(";")[0]
            warnings.warn(f"{reason}; a later epoch replaces it only if it is better", stacklevel=2)
    if file.name == PREVIOUS:
        file.replace(folder / LAST)  # otherwise the next checkpoint would overwrite the good file
        sync_folder(folder)
    return state


def read(path: Path) -> State:
    """Return the contents of one checkpoint file. Raise ValueError if it is damaged or not a checkpoint."""
    if not path.is_file():
        raise ValueError(
            f"{path.parent} holds no {path.name}: it stopped before its first checkpoint; start a new run"
        )
    try:
        with path.open("rb") as file:
            if _checksum(file, path.stat().st_size - CHECKSUM_BYTES) != file.read():
                raise ValueError("its checksum does not match")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile file fails in many ways
        raise ValueError(f"{path} is damaged or not a checkpoint ({_reason(error)}); {REMEDY}") from error
    if not isinstance(state, dict) or state.get("format") not in READABLE:
        raise ValueError(f"{path} is not a checkpoint of this version of divconq; {REMEDY}")
    try:
        check_types(state)
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); {REMEDY}") from error
    return state


def algorithm_state(state: State) -> State:
    """Return the state of ``DivideAndConquer`` from a checkpoint. Format 2 stores its parts separately."""
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
    """Return the state of the masks from a checkpoint of any readable format, with their averages if there are any."""
    if "divide_and_conquer" not in state:
        masks: State = state["masks"]
        return masks
    prefix, algorithm = "objective.masks.", state["divide_and_conquer"]
    raw = {name.removeprefix(prefix): value for name, value in algorithm.items() if name.startswith(prefix)}
    return {**raw, **_averages_of(state, "masks")}


def network_state(state: State) -> State:
    """Return the state of the network that embeds: the averages of the weights if there are any, and the buffers."""
    return {**state["model"], **_averages_of(state, "model")}


def _averages_of(state: State, module: str) -> State:
    averages = state.get("averages", {}).items()
    return {name.removeprefix(f"{module}."): x for name, x in averages if name.startswith(f"{module}.")}


def with_resting_mask(state: State, conquer: str) -> State:
    """Return the state of a checkpoint with the mask of K = 1 folded into the head, if it was trained.

    Up to format 3, a learned mask was trained while K = 1. Now it is ones until the first division. The final
    embedding stays the same: with ``conquer="plain"`` it had no mask.
    """
    if state["format"] not in TRAINED_WHILE_K_IS_1 or conquer == "plain" or "model" not in state:
        return state
    masks, model = masks_state(state), state["model"]
    if int(masks["count"]) > 1 or not {"head.weight", "head.bias"} <= model.keys():
        return state
    mask = masks["weight"][0].relu()
    folded = {"head.weight": model["head.weight"] * mask[:, None], "head.bias": model["head.bias"] * mask}
    return {**state, "model": {**model, **folded}}


def clusters_state(state: State) -> Tensor:
    """Return the cluster of every training image from a checkpoint of any readable format."""
    new = "divide_and_conquer" in state
    clusters: Tensor = state["divide_and_conquer"]["_extra_state"]["clusters"] if new else state["partition"]
    return clusters


def _newest(folder: Path) -> tuple[State, Path]:
    """Return the contents and the path of the newest checkpoint that is not damaged."""
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
            raise ValueError(f"{reason}, and the previous one cannot be used either: {other}") from other
    warnings.warn(f"{reason}; using the previous one, {previous.name}", stacklevel=3)
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
            if isinstance(error.__context__, OSError):  # a full disk, which torch reports as a broken archive
                raise error.__context__ from None
            raise


def _checksum(file: BinaryIO, size: int) -> bytes:
    """Return the SHA-256 of the next ``size`` bytes."""
    digest = hashlib.sha256()
    while block := file.read(max(0, min(size, BLOCK))):
        digest.update(block)
        size -= len(block)
    return digest.digest()


def _link(file: Path, name: Path) -> None:
    """Give a file a second name. The file exists under at least one of the names at any time."""
    link = temporary_name(name)
    try:
        os.link(file, link)
        link.replace(name)
    except OSError:  # this disk has no hard links
        file.replace(name)
    finally:
        link.unlink(missing_ok=True)  # replace() does nothing if both names are the same file


def _reason(error: Exception) -> str:
    return str(error) if type(error) is ValueError else type(error).__name__
