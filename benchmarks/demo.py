"""Divide and conquer against plain training on the built-in dataset, the same budget, several seeds.

    python benchmarks/demo.py run --out benchmarks/results/demo.json     # about two minutes a run on two cores
    python benchmarks/demo.py table benchmarks/results/demo.json         # Markdown, mean and deviation

Runs that are in the file already are skipped.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROWS = {
    "triplet loss alone (K_max 1)": ["--k-max", "1", "--masks", "none"],
    "+ division, fixed masks": ["--masks", "fixed"],
    "+ division, learned masks": ["--masks", "learned"],
    "+ division, no subspaces": ["--masks", "none"],
}
SCORES = {"recall@1": "R@1", "map@r": "MAP@R", "nmi": "NMI"}


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
        print(table(json.loads(arguments.file.read_text())))
        return
    results = json.loads(arguments.out.read_text()) if arguments.out.exists() else []
    done = {(result["row"], result["seed"]) for result in results}
    origin = about(arguments.threads, arguments.commit)
    wanted = [(row, seed) for seed in range(arguments.seeds) for row in ROWS if (row, seed) not in done]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(arguments.parallel) as pool:
        for result in pool.map(lambda job: train(*job, arguments.threads), wanted):
            results.append({**result, **origin})
            arguments.out.write_text(json.dumps(results, indent=1))
            print(
                f"{result['row']}, seed {result['seed']}: R@1 {100 * result['last']['recall@1']:.2f}",
                flush=True,
            )


def about(threads: int, commit: str | None) -> dict:
    import torch

    if commit is None:
        commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], text=True).strip()
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        names = [
            line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")
        ]
        cpu = names[0].partition(":")[2].strip() if names else cpu
    return {"commit": commit, "hardware": f"{threads} threads of {cpu}, torch {torch.__version__}"}


def train(row: str, seed: int, threads: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "divconq", "train", "demo", "--device", "cpu", "--seed", str(seed)]
        command += ["--out", f"{folder}/run", *ROWS[row]]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        subprocess.run(command, check=True, capture_output=True, env=environment)
        records = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    keep = ("epoch", "k", *SCORES)
    seconds = sum(sum(record["seconds"].values()) for record in records)
    return {
        "row": row,
        "seed": seed,
        "flags": ROWS[row],
        "last": {name: records[-1][name] for name in keep},
        "best": {name: max(records, key=lambda record: record["recall@1"])[name] for name in keep},
        "recall@1": [round(record["recall@1"], 5) for record in records],
        "seconds": round(seconds, 1),
    }


def table(results: list[dict]) -> str:
    baseline = next(iter(ROWS))
    by_row = {row: {run["seed"]: run for run in results if run["row"] == row} for row in ROWS}
    head = [
        "",
        *(f"{title}, last epoch" for title in SCORES.values()),
        "R@1 over baseline",
        "R@1, best epoch",
    ]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row, runs in by_row.items():
        if not runs:
            continue
        cells = [spread([100 * run["last"][name] for run in runs.values()]) for name in SCORES]
        gains = [
            100 * (run["last"]["recall@1"] - by_row[baseline][seed]["last"]["recall@1"])
            for seed, run in runs.items()
        ]
        cells.append(
            "" if row == baseline else f"{statistics.mean(gains):+.2f} ± {statistics.stdev(gains):.2f}"
        )
        cells.append(spread([100 * run["best"]["recall@1"] for run in runs.values()]))
        lines.append(f"| {row} | {' | '.join(cells)} |")
    seeds = sorted({run["seed"] for run in results})
    origins = sorted({(run["commit"], run["hardware"]) for run in results})
    lines += [
        "",
        f"`divconq train demo --device cpu --seed N` with the row's flags, seeds {seeds[0]} to {seeds[-1]}; "
        + "; ".join(f"commit {commit} on {hardware}" for commit, hardware in origins)
        + ". "
        "Mean ± standard deviation over the seeds; differences are paired by seed.",
    ]
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


if __name__ == "__main__":
    main()
