"""Measure where the time of a whole run goes, from the command to its end, from outside the process.

    python benchmarks/full_run.py --append results/speed_start.jsonl --about TEXT -- train cub --root DIR --out RUN

Starts ``divconq`` with the words after ``--`` in its own process and records when the run folder appears and when each
epoch is logged. The time between two epochs, minus the phases in the log, is the time of the log and the checkpoints.
The first epoch and the first division include compilation.
"""

import argparse
import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from divconq.experiments.origin import code_version, hardware

PHASES = ("train", "divide", "evaluate")


def watch(words: list[str]) -> tuple[dict[str, float], list[float], list[dict]]:
    """Return the seconds at which the folder appeared and the run ended, those of each epoch, and the log."""
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
    """Return the figures of a run; shares are of training, without the epochs that compile."""
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
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--append", type=Path, help="JSON-lines file that gets the measurement")
    parser.add_argument("--about", default="", help="a few words on the run, for the table")
    parser.add_argument("--commit", help="commit of the code, if there is no git")
    parser.add_argument("words", nargs="+", metavar="-- train ...")
    arguments = parser.parse_args()
    if "--out" not in arguments.words:
        parser.error("name the run folder with --out")
    found = figures(*watch(arguments.words))
    for name, value in found.items():
        print(f"{name}: {value}")
    if arguments.append:
        code, date = code_version(arguments.commit), datetime.now(UTC).isoformat(timespec="seconds")
        about = {
            "name": f"{code} {date}",
            "commit": code[:7],
            "about": arguments.about,
            "date": date,
            "command": f"divconq {' '.join(arguments.words)}",
            "code": code,
            "hardware": hardware("auto"),
        }
        with arguments.append.open("a") as file:
            file.write(json.dumps(about | found) + "\n")


if __name__ == "__main__":
    main()
