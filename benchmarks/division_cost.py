"""What divide and conquer adds to training on a CPU: the same run with it and without it, turn by turn.

    python benchmarks/division_cost.py --epochs 20 --rounds 3

The built-in data and the preset ``demo``; without it there is one cluster and no mask. What counts are training and
division, in seconds of processor time on one thread, which other work on the machine changes little.
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from unittest.mock import patch

import torch

from divconq.config import Config
from divconq.presets import preset
from divconq.reproduce.results import code_version, hardware
from divconq.train import train


def cpu_seconds(config: Config) -> dict[str, float]:
    """Processor time of a run's training and division."""
    with (
        tempfile.TemporaryDirectory() as folder,
        patch("divconq.progress.time.perf_counter", time.process_time),
    ):
        records = train(config, Path(folder, "run"))
    return {
        phase: sum(record["seconds"].get(phase, 0.0) for record in records) for phase in ("train", "divide")
    }


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--divide-every", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    common = replace(
        preset("demo"),
        device="cpu",
        epochs=arguments.epochs,
        divide_every=arguments.divide_every,
        eval_every=arguments.epochs,
        nmi=False,
        save_minutes=60.0,
    )
    ways = {
        "without": replace(common, k_max=1, masks="none"),
        "fixed masks": replace(common, k_max=4, masks="fixed"),
        "learned masks": replace(common, k_max=4, masks="learned"),
    }
    cpu_seconds(replace(ways["learned masks"], epochs=2, divide_every=1))  # warm up
    found = [{name: cpu_seconds(config) for name, config in ways.items()} for _ in range(arguments.rounds)]
    print(f"{hardware('cpu')}, torch {torch.__version__}, {code_version()}, seed 0, one thread\n")
    print("| | training, s | division, s | ratio to without, each round | median |\n|---|---|---|---|---|")
    for name in ways:
        spent = [sum(each[name].values()) / sum(each["without"].values()) for each in found]
        each = " ".join(f"{value:.3f}" for value in spent)
        training, division = (median(once[name][phase] for once in found) for phase in ("train", "divide"))
        print(f"| {name} | {training:.1f} | {division:.2f} | {each} | {median(spent):.3f} |")


if __name__ == "__main__":
    main()
