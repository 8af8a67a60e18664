"""What divide and conquer adds to training on a CPU: epochs with it and without it, turn by turn in one process.

    python benchmarks/division_cost.py --rounds 30

The built-in data and the preset ``demo``; without it there is one cluster and no mask. In every round each way trains
one epoch, in an order that changes, so that what else the machine does falls on all of them alike. A division (the
embedding pass, k-means, matching; what it takes at K = 4) is timed apart, and counted once in E epochs. Seconds are
those of the processor, on one thread.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import mean, median, stdev

import torch

from divconq.bench.steps import Training
from divconq.division import divide
from divconq.job import prepare
from divconq.presets import preset
from divconq.reproduce.results import code_version, hardware


def cpu_seconds(work: Callable[[], object]) -> float:
    """Processor time of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def division(training: Training) -> None:
    """What the loop does before an epoch in which the data is divided."""
    job, before = training.job, training.partition
    x = job.embed(job.train)
    divide("progressive", x, before, job.train.labels, k_max=before.k, seed=training.epoch)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--divide-every", type=int, default=10, metavar="E")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    common = replace(preset("demo"), device="cpu", train_recall=False)
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
    dividing = median(cpu_seconds(lambda: division(ways["fixed masks"])) for _ in range(5))
    print(
        f"{hardware('cpu')}, torch {torch.__version__}, {code_version()}, one thread; E = {arguments.divide_every}"
    )
    print(f"a division takes {dividing:.2f} s, {dividing / arguments.divide_every:.3f} s for each epoch\n")
    print("| | epoch, s, median | with its share of a division | ratio to without, mean | standard error |")
    print("|---|---|---|---|---|")
    for name in names:
        share = 0.0 if name == "without" else dividing / arguments.divide_every
        ratios = [(a + share) / b for a, b in zip(spent[name], spent["without"], strict=True)]
        error = stdev(ratios) / len(ratios) ** 0.5
        typical = median(spent[name])
        print(f"| {name} | {typical:.3f} | {typical + share:.3f} | {mean(ratios):.3f} | {error:.3f} |")


if __name__ == "__main__":
    main()
