"""The command and the example under ``torchrun``."""

import contextlib
import functools
import io
import os
import runpy
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distributed.ranks import Ranks, needs_gloo
from divconq.cli import main
from divconq.runs.folder import Run
from test_resume import assert_same_runs, flags

pytestmark = needs_gloo


DIES_ONCE = """
import os, sys
from divconq.cli import main
from divconq.training.step import TrainingStep
from killed_runs import at_call

if (os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]) == ("0", "1"):
    at_call(TrainingStep, "__call__", 6)
main(sys.argv[1:])
"""


def launched(*command, **settings):
    """Start two processes with ``torchrun``."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *command]
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*map(str, words)], env=environment, text=True, **pipes)


def arguments(config, out):
    return ["train", "--out", str(out), "--save-steps", "2", "--dropout", "0.5", *flags(config)]


def test_a_run_restarted_by_torchrun_ends_like_one_that_was_not_killed(tiny, tmp_path):
    config = tiny.replace(epochs=2)
    (tmp_path / "dies_once.py").write_text(DIES_ONCE)
    process = launched("--max-restarts", "1", tmp_path / "dies_once.py", *arguments(config, tmp_path / "run"))
    told, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert said.count("training on") == 2, "the first of each start says so"
    assert "rank 0: another process of this run has ended" in said
    assert told.count("last (epoch 2)") == 1, "one table, of the first"
    ranks = Ranks(2, functools.partial(main, arguments(config, tmp_path / "whole")), tmp_path)
    assert ranks.join() == [0, 0], [said.read_text() for said in ranks.said]
    assert_same_runs(tmp_path / "whole", tmp_path / "run")


@pytest.mark.slow
def test_a_signal_to_torchrun_saves_and_says_how_to_continue(tiny, tmp_path):
    out = tmp_path / "run"
    process = launched("-m", "divconq", *arguments(tiny.replace(epochs=10_000), out))
    while not (out / "last.pt").exists() and process.poll() is None:
        time.sleep(0.1)
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    assert said.count(f"stopped; continue with: divconq train --resume {out}") == 1
    epochs = Run.open(out).load()["epoch"] + 1
    resumed = launched("-m", "divconq", "train", "--resume", out, "--epochs", epochs)
    resumed.communicate(timeout=120)
    assert resumed.returncode == 0
    assert len(Run.open(out).metrics()) == epochs


def example(*words):
    """Return the output of ``examples/own_loop.py`` on a small part of its data."""
    from divconq.data.sources import demo

    demo.IMAGES, sys.argv = 2, ["own_loop.py", *words]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    return printed.getvalue()


EXAMPLE = Path(__file__).parents[2] / "examples" / "own_loop.py"
WORDS = ("--epochs", "4", "--lr", "1e-4")


def test_a_loop_of_your_own_prints_the_same(tmp_path):
    (alone,) = Ranks(1, functools.partial(example, *WORDS), tmp_path).results()
    assert len(alone.splitlines()) == 4
    assert Ranks(2, functools.partial(example, *WORDS), tmp_path).results() == [alone, ""]


@pytest.mark.slow
def test_the_example_under_torchrun_prints_the_same():
    words = ["--epochs", "1", "--lr", "1e-5"]  # rounding errors stay small
    alone = subprocess.run([sys.executable, EXAMPLE, *words], capture_output=True, text=True, check=True)
    told, said = launched(EXAMPLE, *words).communicate(timeout=600)
    assert told == alone.stdout, said
