"""Where the time of a whole run goes, from its command to its end, as one sees it from outside.

    python benchmarks/full_run.py --json run.json -- train cub --root DIR --out RUN [flags]

Starts ``divconq`` with the words after ``--`` in a process of its own, and notes when the run folder appears and when
each epoch is logged. What the log counts as training, division and evaluation is compared with the time between two
epochs: the rest is writing the log and checkpoints. The first epoch and the first division compile what they need.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from divconq.experiments.origin import code_version, hardware

PHASES = ("train", "divide", "evaluate")


def watch(words: list[str]) -> tuple[dict[str, float], list[float], list[dict]]:
    """Seconds after the start at which the folder was there, each epoch was logged, and all was over; the log."""
    out = Path(words[words.index("--out") + 1])
    log, stamps, start = out / "metrics.jsonl", list[float](), time.monotonic()
    moments: dict[str, float] = {}
    process = subprocess.Popen([sys.executable, "-m", "divconq", *words])
    while process.poll() is None:
        now = time.monotonic() - start
        if "prepared" not in moments and (out / "config.yaml").exists():
            moments["prepared"] = now
        lines = log.read_bytes().count(b"\n") if log.exists() else 0
        stamps += [now] * (lines - len(stamps))
        time.sleep(0.01)
    if process.returncode:
        raise SystemExit(process.returncode)
    moments["end"] = time.monotonic() - start
    return moments, stamps, [json.loads(line) for line in log.read_text().splitlines()]


def figures(moments: dict[str, float], stamps: list[float], records: list[dict]) -> dict[str, object]:
    """What is said of a run; the shares are of training, without the epochs that compile."""
    total = {phase: sum(record["seconds"].get(phase, 0.0) for record in records) for phase in PHASES}
    divisions = [record["seconds"]["divide"] for record in records if "divide" in record["seconds"]]
    evaluations = [record["seconds"]["evaluate"] for record in records if "evaluate" in record["seconds"]]
    epochs = [record["seconds"]["train"] for record in records[1:]]
    spent = sum(sum(record["seconds"].values()) for record in records[1:])
    warm_up = stamps[0] - (median(epochs) if epochs else 0.0)
    return {
        "seconds until the folder is there": moments["prepared"],
        "seconds until the first epoch is logged": stamps[0],
        "warm-up: that, less an epoch": warm_up,
        "seconds from the first epoch's end to the last's": stamps[-1] - stamps[0],
        "seconds after the last epoch": moments["end"] - stamps[-1],
        "seconds in all": moments["end"],
        "seconds by phase": total,
        "median epoch": median(epochs) if epochs else None,
        "images/s, median": median(record["images_per_s"] for record in records),
        "divisions, first and median": [divisions[0], median(divisions)] if divisions else None,
        "evaluations, first and median": [evaluations[0], median(evaluations)] if evaluations else None,
        "division / training, without the first": sum(divisions[1:]) / sum(epochs) if divisions[1:] else None,
        "neither phase / training": (stamps[-1] - stamps[0] - spent) / sum(epochs) if epochs else None,
        "last": {name: value for name, value in records[-1].items() if name != "seconds"},
    }


def main() -> None:
    """Run, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", help="of the code, where there is no git")
    parser.add_argument("words", nargs="+", metavar="-- train ...")
    arguments = parser.parse_args()
    if "--out" not in arguments.words:
        parser.error("name the run with --out")
    found = figures(*watch(arguments.words))
    about = {
        "command": f"divconq {' '.join(arguments.words)}",
        "code": code_version(arguments.commit),
        "hardware": hardware("auto"),
    }
    for name, value in found.items():
        print(f"{name}: {value}")
    if arguments.json:
        arguments.json.write_text(json.dumps(about | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
