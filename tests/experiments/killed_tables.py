"""Reproduce one table in many processes, each killed by SIGKILL except the last.

    python killed_tables.py TABLE.yaml OUT

Each process is a fork of a fresh process. Prints as JSON how each one ended.
"""

import json
import os
import shutil
import sys
import warnings
from pathlib import Path

import torch

from divconq.experiments import load_table, reproduce, runner
from divconq.runs import checkpoints
from divconq.training.step import TrainingStep
from killed_runs import at_call

DEATHS = {
    "first step": lambda: at_call(TrainingStep, "__call__", 1),
    "after a checkpoint": lambda: at_call(checkpoints, "save", 2, after=True),
    "before the result": lambda: at_call(runner, "append_result", 1),
    "after the result": lambda: at_call(runner, "append_result", 1, after=True),
    "in the second epoch": lambda: at_call(TrainingStep, "__call__", 4),
    "after a folder is deleted": lambda: at_call(shutil, "rmtree", 1, after=True),
    "before the table": lambda: at_call(runner, "write_table", 1),
}


def life(path, out, arm=None):
    """Reproduce the table in a forked process; return how it ended."""
    if (pid := os.fork()) == 0:
        try:
            if arm is not None:
                arm()
            warnings.simplefilter("ignore")
            reproduce(load_table(path), out, say=lambda line: None, device="cpu", workers=2, commit="same")
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1]


def main(path, out):
    torch.set_num_threads(1)
    ends = {name: life(Path(path), Path(out), arm) for name, arm in DEATHS.items()}
    print(json.dumps(ends | {"last": life(Path(path), Path(out))}))


if __name__ == "__main__":
    main(*sys.argv[1:])
