"""The command line. Each command reads its flags and calls the library."""

import os
import re
import sys
import warnings
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from divconq.cli.experiment_commands import bench_command, reproduce_command
from divconq.cli.inspect_commands import (
    analyze_command,
    compare_command,
    data_command,
    embed_command,
    eval_command,
    presets_command,
)
from divconq.cli.messages import fail, process_count, show_warning
from divconq.cli.parsing import parse
from divconq.cli.streams import OutputError, discard_output, standard_streams
from divconq.cli.training_command import train_command
from divconq.io.atomic import FULL
from divconq.training.stop_signals import StopSignals, exit_code

COMPILERS = ("torch._inductor", "torch._dynamo", "torch.autograd.graph")  # their warnings are for developers

COMMANDS: dict[str, Callable[[Any], None]] = {
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
    """Run a command. For bad input, print one sentence and exit with code 2."""
    with standard_streams(), StopSignals():
        _main(sys.argv[1:] if argv is None else argv)


def _main(argv: list[str]) -> None:
    warnings.showwarning = show_warning
    for compiler in COMPILERS:
        warnings.filterwarnings("ignore", module=re.escape(compiler))
    try:
        try:
            run(argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
        raise SystemExit(0) from None
    except OutputError as error:
        discard_output()
        fail(str(error), 1)
    except ConnectionError as error:  # between processes: each prints its own message
        fail(str(error), 1, every_process=True)
    except (ValueError, OSError) as error:
        if os.environ.get("DIVCONQ_TRACEBACK"):
            raise
        if isinstance(error, OSError) and error.errno in FULL:
            fail(f"the disk is full ({error}); free space, then run the same command again", 1)
        fail(str(error), 2)
    except FloatingPointError as error:
        fail(str(error), 1)
    except BrokenProcessPool:
        fail(
            "a process that decodes images has ended, perhaps because there was too little memory; "
            "lower --workers, then run the same command again",
            1,
        )
    except KeyboardInterrupt as stopped:
        fail("stopped; start again with the same command", exit_code(stopped))


def run(argv: list[str]) -> None:
    """Parse the words of a command line and call the command."""
    start, arguments, free = parse(argv)
    if start.words[0] == "train":
        train_command(start, arguments, free)
        return
    if process_count() > 1:
        raise ValueError(
            f"divconq {start.words[0]} runs in one process, got {process_count()}; start it without torchrun"
        )
    COMMANDS[start.words[0]](arguments)
