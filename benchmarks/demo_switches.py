"""Switches beyond the paper on the built-in dataset, one at a time, on a CPU.

    python benchmarks/demo_switches.py benchmarks/results/demo_switches.jsonl [SEED ...]

Each run trains the preset demo with the flags of its row. Runs that are in the file already are skipped.
"""

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from divconq.experiments.origin import code_version, hardware

ROWS = {
    "preset (fixed masks, triplet loss)": [],
    "cosine schedule, 2 epochs of warm-up": ["--schedule", "cosine", "--warmup-epochs", "2"],
    "GeM pooling": ["--pooling", "gem"],
    "memory of 512 past embeddings": ["--memory", "512"],
    "rotating blocks": ["--masks", "rotating"],
}
SCORES = ("recall@1", "map@r")


def main() -> None:
    file, seeds = Path(sys.argv[1]), [int(word) for word in sys.argv[2:]] or [0, 1, 2]
    lines = file.read_text().splitlines() if file.exists() else []
    done = {(run["row"], run["seed"]) for run in map(json.loads, lines)}
    wanted = [(row, seed) for seed in seeds for row in ROWS if (row, seed) not in done]
    origin = {"commit": code_version(), "hardware": f"1 thread of {hardware('cpu').partition(' of ')[2]}"}
    with ThreadPoolExecutor(2) as pool:
        for run in pool.map(lambda job: train(*job), wanted):
            with file.open("a") as stream:
                stream.write(json.dumps({**run, **origin}) + "\n")


def train(row: str, seed: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "divconq", "train", "demo", "--device", "cpu", "--seed", str(seed)]
        command += [
            "--no-nmi",
            "--no-train-recall",
            "--eval-every",
            "60",
            "--out",
            f"{folder}/run",
            *ROWS[row],
        ]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        last = json.loads(Path(folder, "run", "metrics.jsonl").read_text().splitlines()[-1])
    return {"row": row, "seed": seed, **{name: round(last[name], 5) for name in SCORES}}


if __name__ == "__main__":
    main()
