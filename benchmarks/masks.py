"""Learned masks on the built-in dataset: dead entries, overlap and R@1 of every activation.

    python benchmarks/masks.py run --out benchmarks/results/masks.jsonl             # about a minute a run on one core
    python benchmarks/masks.py run --out FILE --old CHECKOUT/src --commit 6753db7   # runs of the row "old"
    python benchmarks/masks.py table benchmarks/results/masks.jsonl                 # prints Markdown

The row "old" is the code before masks rested while K = 1. Settings are selected on ``demo:1`` (other species) and
reported on ``demo``. Runs that are in the file already are skipped.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from divconq.experiments.origin import code_version, hardware
from divconq.experiments.statistics import summarise

ACTIVATIONS = ("relu", "projected", "softplus", "straight_through")
SETTINGS = ("1,0", "10,0.2", "100,0.2")  # the preset of the demo, and two that move the masks further
KEY = ("data", "row", "lr_scale", "noise", "seed")
DEAD = 0.01  # as in divconq.masks.subspaces, which the old code lacks


def main() -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    run_parser = commands.add_parser("run")
    run_parser.add_argument("--out", type=Path, required=True)
    run_parser.add_argument("--data", nargs="+", default=["demo:1", "demo"])
    run_parser.add_argument("--rows", nargs="+", default=ACTIVATIONS)
    run_parser.add_argument("--settings", nargs="+", default=SETTINGS, help="mask_lr_scale,mask_split_noise")
    run_parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    run_parser.add_argument("--parallel", type=int, default=2)
    run_parser.add_argument("--old", type=Path, default=None)
    run_parser.add_argument("--commit", default=None)
    table_parser = commands.add_parser("table")
    table_parser.add_argument("file", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "table":
        print("\n".join(table(read(arguments.file))))
        return
    done = {tuple(run[name] for name in KEY) for run in read(arguments.out)}
    rows = ["old"] if arguments.old else arguments.rows
    settings = [tuple(map(float, setting.split(","))) for setting in arguments.settings]
    jobs = itertools.product(arguments.seeds, arguments.data, settings, rows)
    wanted = [
        dict(zip(KEY, (data, row, *setting, seed), strict=True))
        for seed, data, setting, row in jobs
        if (data, row, *setting, seed) not in done
    ]
    origin = {
        "commit": code_version(arguments.commit),
        "hardware": f"{hardware('cpu')}, torch {torch.__version__}",
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(arguments.parallel) as pool:
        for job, result in pool.map(lambda job: (job, train(job, arguments.old)), wanted):
            with arguments.out.open("a") as file:
                file.write(json.dumps({**job, **result, **origin}) + "\n")


def read(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def train(job: dict, old: Path | None) -> dict:
    """Return the masks and the scores of one run on one core."""
    flags = ["--data", job["data"], "--masks", "learned", "--seed", str(job["seed"])]
    flags += ["--mask-lr-scale", str(job["lr_scale"]), "--mask-split-noise", str(job["noise"])]
    flags += [] if old else ["--mask-activation", job["row"]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **({"PYTHONPATH": str(old)} if old else {})}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        command = [sys.executable, "-m", "divconq", "train", "demo", "--device", "cpu", "--out", str(run)]
        command += ["--no-nmi", "--eval-every", "60", *flags]
        subprocess.run(command, check=True, capture_output=True, env=environment)
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        dead, lost = dead_at_divisions(run)
    last = records[-1]
    return {
        "flags": flags,
        "dead": dead,
        "lost": lost,
        "dead_masks": [round(record["dead_masks"], 4) for record in records if "dead_masks" in record],
        "overlap": [round(record["overlap"], 4) for record in records],
        "last": {name: last[name] for name in ("epoch", "k", "recall@1", "map@r", "train_recall@1")},
        "seconds": round(sum(sum(record["seconds"].values()) for record in records), 1),
    }


def dead_at_divisions(run: Path) -> tuple[dict[int, float], dict[int, float]]:
    """Return the shares of dead entries, and of dimensions that are dead in every mask, by epoch.

    The epochs are those of the divisions and the last one. The masks are those of the run folder.
    """
    from divconq.analysis.run_record import read_run

    record = read_run(run)
    masks = {division.epoch: division.masks for division in record.divisions}
    masks |= {len(record.metrics): record.snapshot("last").masks}
    dead = {epoch: mask <= DEAD * mask.amax(1, keepdim=True) for epoch, mask in masks.items()}
    return (
        {epoch: round(float(entries.double().mean()), 4) for epoch, entries in dead.items()},
        {epoch: round(float(entries.all(0).double().mean()), 4) for epoch, entries in dead.items()},
    )


def table(results: list[dict]) -> list[str]:
    """Return the lines of the table in Markdown, and where its runs were made."""
    head = [
        "data",
        "lr x",
        "noise",
        "masks",
        "dead, epoch 20",
        "dead, last",
        "lost, last",
        "overlap, last",
        "R@1",
        "MAP@R",
    ]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    kinds = sorted({tuple(run[name] for name in KEY[:4]) for run in results}, key=order)
    for data, row, lr_scale, noise in kinds:
        runs = [
            run for run in results if tuple(run[name] for name in KEY[:4]) == (data, row, lr_scale, noise)
        ]
        columns = [
            [100 * run["dead"]["20"] for run in runs],
            [100 * run["dead"]["60"] for run in runs],
            [100 * run["lost"]["60"] for run in runs],
            [run["overlap"][-1] for run in runs],
            [100 * run["last"]["recall@1"] for run in runs],
            [100 * run["last"]["map@r"] for run in runs],
        ]
        cells = [spread(values) for values in columns]
        lines.append(f"| {data} | {lr_scale:g} | {noise:g} | {row} | {' | '.join(cells)} |")
    origins = sorted({(run["commit"], run["hardware"]) for run in results})
    made = "; ".join(f"commit {commit} on {hardware}" for commit, hardware in origins)
    seeds = sorted({run["seed"] for run in results})
    return [*lines, "", f"Seeds {seeds[0]} to {seeds[-1]}; {made}. Mean ± standard deviation over the seeds."]


def order(kind: tuple) -> tuple:
    data, row, lr_scale, noise = kind
    return data, lr_scale, noise, ("old", *ACTIVATIONS).index(row)


def spread(values: list[float]) -> str:
    found = summarise(values)
    return f"{found.mean:.2f}" + ("" if found.deviation is None else f" ± {found.deviation:.2f}")


if __name__ == "__main__":
    main()
