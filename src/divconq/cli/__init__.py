"""The command line: thin, each command reads its flags and calls the library."""

import os
import re
import sys
import warnings
from collections.abc import Callable

from divconq import __version__
from divconq.checks import did_you_mean
from divconq.cli.looking import (
    analyze_command,
    compare_command,
    data_command,
    embed_command,
    eval_command,
    presets_command,
)
from divconq.cli.measuring import bench_command, reproduce_command
from divconq.cli.speaking import fail, processes, show_warning
from divconq.cli.training import train_command
from divconq.presets import PRESETS

USAGE = """divconq {version}: train image-retrieval embeddings by divide and conquer

  divconq train PRESET [--out DIR] [flags]    train; the presets are {presets}
  divconq train --data FOLDER [flags]         train on your own photos, a folder of class folders
  divconq train --resume RUN                  continue a run that was stopped
  divconq eval RUN                            score a trained run
  divconq embed RUN --data FOLDER --out FILE  embed images into an .npz file
  divconq analyze RUN [RUN ...] [--out DIR]   write a report: what the run has learned, others beside it
  divconq compare RUN [RUN ...]               print a table of runs, mean and deviation over seeds
  divconq data check NAME_OR_FOLDER           look for what is wrong with a dataset
  divconq reproduce TABLE.yaml [--out DIR]    run a table of experiments, rows by seeds, and render it
  divconq bench [--only step,knn] [flags]     measure how fast this machine trains, clusters and searches
  divconq presets [show PRESET]               list the presets, or print one

Every command explains its flags with --help, for example: divconq train cub --help
"""

COMPILERS = ("torch._inductor", "torch._dynamo", "torch.autograd.graph")  # their warnings are for developers

COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "train": train_command,
    "eval": eval_command,
    "embed": embed_command,
    "analyze": analyze_command,
    "compare": compare_command,
    "data": data_command,
    "reproduce": reproduce_command,
    "bench": bench_command,
    "presets": presets_command,
}


def main(argv: list[str] | None = None) -> None:
    """Run one command; bad input is one sentence and exit code 2."""
    arguments = sys.argv[1:] if argv is None else argv
    warnings.showwarning = show_warning
    for compiler in COMPILERS:
        warnings.filterwarnings("ignore", module=re.escape(compiler))
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE.format(version=__version__, presets=", ".join(PRESETS)), end="")
        return
    if arguments[0] == "--version":
        print(f"divconq {__version__}")
        return
    try:
        command(arguments[0])(arguments[1:])
    except BrokenPipeError:
        raise SystemExit(0) from None
    except ConnectionError as error:  # with other processes: each says what it knows
        fail(str(error), 1, all_say=True)
    except (ValueError, OSError) as error:
        if os.environ.get("DIVCONQ_TRACEBACK"):
            raise
        fail(str(error), 2)
    except FloatingPointError as error:
        fail(str(error), 1)
    except KeyboardInterrupt:
        fail("stopped", 130)


def command(name: str) -> Callable[[list[str]], None]:
    """The function behind a command's name."""
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS)
        raise ValueError(f"unknown command {name!r}: choose one of {', '.join(COMMANDS)}{hint}")
    if name != "train" and processes() > 1:
        raise ValueError(f"divconq {name} runs in one process, got {processes()}; start it without torchrun")
    return COMMANDS[name]
