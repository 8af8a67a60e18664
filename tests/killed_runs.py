"""Train one run in many processes, each killed by SIGKILL except the last; each is a fork of a fresh process.

    python killed_runs.py CONFIG.yaml WHOLE KILLED

trains the run folder WHOLE without a stop, and KILLED with one process for each of ``DEATHS``. Prints as JSON how
each process ended.
"""

import itertools
import json
import os
import random
import signal
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path

with suppress(ImportError):  # faiss is optional on a GPU
    import faiss  # noqa: F401  import before the first fork what a run needs
import safetensors.torch  # noqa: F401
import scipy.optimize  # noqa: F401
import torch

from divconq import divide_and_conquer
from divconq.config import from_yaml
from divconq.runs import checkpoints
from divconq.runs.folder import Run
from divconq.train import train
from divconq.training.setup import Job, prepare
from divconq.training.step import TrainingStep


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def at_call(owner, name, number, *, after=False):
    """Kill this process at call ``number`` of a function, before or after the call."""
    real, calls = getattr(owner, name), itertools.count(1)

    def deadly(*args, **kwargs):
        last = next(calls) == number
        if last and not after:
            die()
        result = real(*args, **kwargs)
        if last:
            die()
        return result

    setattr(owner, name, deadly)


def in_a_write(number):
    """Kill this process when half of checkpoint ``number`` is written."""
    real, calls = checkpoints._write_archive, itertools.count(1)

    def deadly(path, state):
        real(path, state)
        if next(calls) == number:
            os.truncate(path, path.stat().st_size // 2)
            die()

    checkpoints._write_archive = deadly


def in_the_log():
    """Kill this process when half of a line of the log is written."""

    def deadly(run, record):
        with (run.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(record)[:20])
        die()

    Run.log = deadly


DEATHS = {
    "first step": lambda: at_call(TrainingStep, "__call__", 1),
    "first checkpoint": lambda: in_a_write(1),
    "first checkpoint, before it has its name": lambda: at_call(Path, "replace", 4),
    "first evaluation": lambda: at_call(Job, "scores", 1),
    "log": in_the_log,
    "after the log": lambda: at_call(Run, "log", 1, after=True),
    "between best and last": lambda: at_call(checkpoints, "save", 2),
    **{f"at a random time {number}": None for number in range(6)},
    "in a division": lambda: at_call(divide_and_conquer, "divide", 1),
    "in the embedding for a division": lambda: at_call(Job, "embed", 1),
    "after a division": lambda: at_call(divide_and_conquer, "divide", 1, after=True),
    "after the file of a division": lambda: at_call(Run, "save_division", 1, after=True),
    "third checkpoint": lambda: in_a_write(3),
    "before the link": lambda: at_call(os, "link", 1),
    "after the link": lambda: at_call(os, "link", 2, after=True),
    "between the renames": lambda: at_call(checkpoints, "_link", 1, after=True),
    "after a checkpoint": lambda: at_call(checkpoints, "save", 1, after=True),
    "while it syncs": lambda: at_call(os, "fsync", 9),
    "fourth step": lambda: at_call(TrainingStep, "__call__", 4),
    "while it resumes": lambda: at_call(Run, "rewind", 1),
    "after it has resumed": lambda: at_call(Run, "rewind", 1, after=True),
    "division again": lambda: at_call(divide_and_conquer, "divide", 1),
    "third step": lambda: at_call(TrainingStep, "__call__", 3),
    "export": lambda: at_call(Run, "export", 1),
    "after the export": lambda: at_call(Run, "export", 1, after=True),
}


def soon():
    """Kill this process after two steps at the latest, so that the run does not finish on a fast machine."""
    at_call(TrainingStep, "__call__", 3)


def life(config, folder, arm=None):
    """Train in a forked process; return its id."""
    if pid := os.fork():
        return pid
    try:
        if arm is not None:
            arm()
        warnings.simplefilter("ignore")
        train(config, folder, resume=(folder / "config.yaml").is_file())
        os._exit(0)
    except BaseException as error:
        print(repr(error), file=sys.stderr)
    finally:
        os._exit(1)


def main(config, whole, killed):
    torch.set_num_threads(1)
    config = from_yaml(Path(config).read_text())
    prepare(config)
    start = time.monotonic()
    ends = {"whole": os.waitpid(life(config, Path(whole)), 0)[1]}
    lasts = time.monotonic() - start
    chance = random.Random(0)
    for name, arm in DEATHS.items():
        pid = life(config, Path(killed), arm or soon)
        if arm is None:
            time.sleep(chance.uniform(0.05, 0.2) * lasts)
            os.kill(pid, signal.SIGKILL)
        ends[name] = os.waitpid(pid, 0)[1]
    ends["last"] = os.waitpid(life(config, Path(killed)), 0)[1]
    print(json.dumps(ends))


if __name__ == "__main__":
    main(*sys.argv[1:])
