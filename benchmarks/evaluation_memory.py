"""Compare the peak memory of an evaluation on a CPU with pytorch-metric-learning, each in its own process.

    python benchmarks/evaluation_memory.py --points 20000 --rounds 2

Recall@1, 10, 100 and MAP@R of points x 512 (pytorch-metric-learning: R@1 and MAP@R), without the points themselves.
"""

import argparse
import subprocess
import sys

import torch

from divconq.bench.algorithms import KS, NOISE, metric_learning_scores, points
from divconq.bench.memory import CLEAR, _kilobytes
from divconq.evaluation import retrieval_scores

WAYS = {
    "divconq": lambda x, labels: retrieval_scores(x, labels, ks=KS),
    "pytorch-metric-learning": lambda x, labels: metric_learning_scores(x, labels, max(KS)),
}


def mebibytes(way: str, n: int) -> float:
    """Return the peak memory of this process; a small evaluation before it loads all libraries."""
    cpu = torch.device("cpu")
    WAYS[way](*points(200, 512, 40, device=cpu))
    x, labels = points(n, 512, n // 5, device=cpu, noise=NOISE)
    CLEAR.write_text("5")  # resets the peak
    before = _kilobytes("VmRSS")
    WAYS[way](x, labels)
    return (_kilobytes("VmHWM") - before) / 1024


def main() -> None:
    """Measure each way."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--points", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=WAYS, help="measure one way in this process")
    given = parser.parse_args()
    if given.only:
        print(f"{mebibytes(given.only, given.points):.0f}")
        return
    for way in WAYS:
        command = [sys.executable, __file__, "--points", str(given.points), "--only", way]
        found = [
            subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(given.rounds)
        ]
        print(f"{way}: {', '.join(one.stdout.strip() for one in found)} MiB")


if __name__ == "__main__":
    main()
