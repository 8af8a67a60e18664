"""Measure the cost of divide and conquer on a CPU: epochs with and without it, in turns, in one process.

    python benchmarks/division_cost.py --rounds 30

Data and preset are ``demo``; without division there is one cluster and no mask. In every round each way trains one
epoch, in a rotating order, so that other load on the machine affects all of them alike. A division (embedding pass,
k-means, matching, at K = 4) is timed separately and counted once per E epochs: complete, and without the embedding
pass, which is not needed after an evaluation with ``train_recall``. Seconds are processor time on one thread.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import mean, median, stdev

import torch
from torch import Tensor

from divconq.bench.steps import Training
from divconq.division import divide
from divconq.experiments.origin import code_version, hardware
from divconq.presets import preset
from divconq.training.setup import prepare


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the processor time of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def division(training: Training, x: Tensor | None = None) -> None:
    """Divide the data as the loop does; ``x`` are the embeddings of the training images, if known."""
    job, before = training.job, training.partition
    x = job.embed(job.train) if x is None else x
    divide("progressive", x, before, job.train.labels, k_max=before.k, seed=training.epoch)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--divide-every", type=int, default=10, metavar="E")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    common = preset("demo").replace(device="cpu", train_recall=False)
    settings = {
        "without": replace(common, k_max=1, masks="none"),
        "fixed masks": replace(common, k_max=4, masks="fixed"),
        "learned masks": replace(common, k_max=4, masks="learned"),
    }
    ways = {name: Training(prepare(config)) for name, config in settings.items()}
    for training in ways.values():  # warm up
        training.run()
        division(training)
    names, spent = list(ways), {name: list[float]() for name in ways}
    for turn in range(arguments.rounds):
        for name in names[turn % 3 :] + names[: turn % 3]:
            spent[name].append(cpu_seconds(ways[name].run))
    seen = ways["fixed masks"].job.embed(ways["fixed masks"].job.train)
    whole, rest = (
        median(cpu_seconds(lambda x=x: division(ways["fixed masks"], x)) for _ in range(9))
        for x in (None, seen)
    )
    every = arguments.divide_every
    print(f"{hardware('cpu')}, torch {torch.__version__}, {code_version()}, one thread; E = {every}")
    print(f"a division takes {whole:.3f} s, {rest:.3f} s if the images are embedded already\n")
    print("| | epoch, s, median | with divisions, ratio to without | with train_recall | standard error |")
    print("|---|---|---|---|---|")
    for name in names:
        shares = (0.0, 0.0) if name == "without" else (whole / every, rest / every)
        ratios = [
            [(a + share) / b for a, b in zip(spent[name], spent["without"], strict=True)] for share in shares
        ]
        error = stdev(ratios[0]) / len(ratios[0]) ** 0.5
        print(
            f"| {name} | {median(spent[name]):.3f} | {mean(ratios[0]):.3f} | {mean(ratios[1]):.3f} | {error:.3f} |"
        )


if __name__ == "__main__":
    main()
