"""Draw the peak memory of an evaluation against the number of points, from results/speed_algorithms.jsonl.

python benchmarks/memory_plot.py --out benchmarks/memory.svg
"""

import argparse
from pathlib import Path

from speed_tables import measurement

GIB = 2**30
REPORTS = ("h200_algorithms", "epyc_memory")


def main() -> None:
    """Draw one line per report, and the memory of all distances at once."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "memory.svg")
    given = parser.parse_args()
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "the same file every time"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    sizes = set()
    for name in REPORTS:
        report = measurement("speed_algorithms", name)
        rows = [row for row in report["memory"] if row["bytes"] is not None]
        points = [row["points"] for row in rows]
        sizes.update(points)
        axes.plot(points, [row["bytes"] / GIB for row in rows], marker="o", label=report["hardware"])
    wide = sorted(sizes)
    axes.plot(wide, [4 * n * n / GIB for n in wide], "--", color="grey", label="all distances at once")
    axes.axhline(4, color="grey", linewidth=0.8, linestyle=":", label="4 GiB")
    axes.set(xscale="log", yscale="log", xlabel="points x 512", ylabel="GiB beyond the embeddings")
    axes.legend()
    figure.tight_layout()
    figure.savefig(given.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
