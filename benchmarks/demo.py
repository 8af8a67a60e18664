"""Divide and conquer against plain training on the built-in dataset: same budget, several seeds.

    python benchmarks/demo.py run --out benchmarks/results/demo.jsonl     # about two minutes a run on two cores
    python benchmarks/demo.py table benchmarks/results/demo.jsonl         # prints Markdown

Runs that are in the file already are skipped.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from divconq.evaluation.scores import title
from divconq.evaluation.selection import Rank, rank_epoch
from divconq.experiments.origin import code_version, hardware
from divconq.experiments.statistics import summarise

ROWS = {
    "triplet loss alone (K_max 1)": ["--k-max", "1", "--masks", "none"],
    "+ division, fixed masks": ["--masks", "fixed"],
    "+ division, learned masks": ["--masks", "learned"],
    "+ division, no subspaces": ["--masks", "none"],
}
SCORES = ("recall@1", "map@r", "nmi")


def main() -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    run_parser = commands.add_parser("run")
    run_parser.add_argument("--out", type=Path, required=True)
    run_parser.add_argument("--seeds", type=int, default=5)
    run_parser.add_argument("--parallel", type=int, default=1)
    run_parser.add_argument("--threads", type=int, default=2)
    run_parser.add_argument("--commit", default=None)
    table_parser = commands.add_parser("table")
    table_parser.add_argument("file", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "table":
        print("\n".join(table(read(arguments.file))))
        return
    results = read(arguments.out) if arguments.out.exists() else []
    done = {(result["row"], result["seed"]) for result in results}
    origin = about(arguments.threads, arguments.commit)
    wanted = [(row, seed) for seed in range(arguments.seeds) for row in ROWS if (row, seed) not in done]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(arguments.parallel) as pool:
        for result in pool.map(lambda job: train(*job, arguments.threads), wanted):
            with arguments.out.open("a") as file:
                file.write(json.dumps({**result, **origin}) + "\n")
            print(
                f"{result['row']}, seed {result['seed']}: R@1 {100 * result['last']['recall@1']:.2f}",
                flush=True,
            )


def read(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def about(threads: int, commit: str | None) -> dict:
    import torch

    torch.set_num_threads(threads)
    return {"commit": code_version(commit), "hardware": f"{hardware('cpu')}, torch {torch.__version__}"}


def train(row: str, seed: int, threads: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "divconq", "train", "demo", "--device", "cpu", "--seed", str(seed)]
        command += ["--out", f"{folder}/run", *ROWS[row]]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        subprocess.run(command, check=True, capture_output=True, env=environment)
        records = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    keep = ("epoch", "k", *SCORES)

    def rank(record: dict) -> Rank:
        return rank_epoch(record["recall@1"], record["k"])

    seconds = sum(sum(record["seconds"].values()) for record in records)
    return {
        "row": row,
        "seed": seed,
        "flags": ROWS[row],
        "last": {name: records[-1][name] for name in keep},
        "best": {name: max(records, key=rank)[name] for name in keep},
        "recall@1": [round(record["recall@1"], 5) for record in records],
        "seconds": round(seconds, 1),
    }


def table(results: list[dict]) -> list[str]:
    """Return the lines of the table in Markdown, and where its runs were made."""
    baseline = next(iter(ROWS))
    by_row = {row: {run["seed"]: run for run in results if run["row"] == row} for row in ROWS}
    scores = [f"{title(name)}, last epoch" for name in SCORES]
    head = ["", *scores, "R@1 over baseline", "R@1, best epoch"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row, runs in by_row.items():
        if not runs:
            continue
        cells = [spread([100 * run["last"][name] for run in runs.values()]) for name in SCORES]
        gains = [
            100 * (run["last"]["recall@1"] - by_row[baseline][seed]["last"]["recall@1"])
            for seed, run in runs.items()
        ]
        cells.append("" if row == baseline else spread(gains, sign="+"))
        cells.append(spread([100 * run["best"]["recall@1"] for run in runs.values()]))
        lines.append(f"| {row} | {' | '.join(cells)} |")
    seeds = sorted({run["seed"] for run in results})
    origins = sorted({(run["commit"], run["hardware"]) for run in results})
    made = "; ".join(f"commit {commit} on {hardware}" for commit, hardware in origins)
    about = (
        f"`divconq train demo --device cpu --seed N` with the row's flags, seeds {seeds[0]} to {seeds[-1]}; {made}. "
        "Mean ± standard deviation over the seeds; differences are paired by seed."
    )
    return [*lines, "", about]


def spread(values: list[float], sign: str = "") -> str:
    found = summarise(values)
    return f"{found.mean:{sign}.2f} ± {found.deviation:.2f}"


if __name__ == "__main__":
    main()
