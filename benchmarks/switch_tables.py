"""Tables of switches.md: learned masks, losses of our own, the average of the weights, CLML."""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev

import masks as learned_masks
from divconq.evaluation.selection import best_epoch
from divconq.experiments.results import Result, read_result_file

FOLDER = Path(__file__).parent
CUB = FOLDER / "cub"
LATE = 10  # epochs


def masks(results: list[Result]) -> list[str]:
    """Return dead entries, overlap and scores of learned masks on CUB200-2011, also those of the former code."""
    former = [
        result
        for result in read_result_file(CUB / "earlier.jsonl")
        if result.row == "learned" and result.table == "cub_margin"
    ]
    rows = {"relu, before masks rested while K = 1": former}
    for name in ("relu", "projected", "straight", "softplus"):
        rows[name] = [
            result
            for result in results
            if (result.table, result.row, result.code) == ("cub_masks", name, CODE)
        ]
    head = [
        "",
        "seeds",
        "dead at epochs 11, 13, 20, 21, 30",
        "overlap at epochs 11, 13, 20, 21, 30",
        "R@1, last ten epochs",
    ]
    lines = [_line(head), _line(["---", "---", "---", "---", "---:"])]
    for title, runs in rows.items():
        seeds = ", ".join(str(run.seed) for run in sorted(runs, key=lambda run: run.seed))
        late = [100 * mean(run.metrics["recall@1"][-LATE:]) for run in runs]
        lines.append(
            _line([title, seeds, _over(runs, "dead_masks"), _over(runs, "overlap"), f"{mean(late):.2f}"])
        )
    return lines


def steady(results: list[Result]) -> list[str]:
    """Return the mean and the deviation of the evaluations of the last ten epochs, with and without an average."""
    lines = [
        _line(["", "seed", "R@1, mean", "deviation", "MAP@R, mean", "deviation"]),
        _line(["---", "---", "---:", "---:", "---:", "---:"]),
    ]
    wanted = {"margin loss": ("cub_margin", "margin"), "+ average, 0.99 a step": ("cub_ema", "ema")}
    seeds = {
        result.seed for result in results if (result.table, result.row) == wanted["+ average, 0.99 a step"]
    }
    for seed in sorted(seeds):
        for title, place in wanted.items():
            (run,) = (
                result for result in results if (result.table, result.row) == place and result.seed == seed
            )
            cells = []
            for score in ("recall@1", "map@r"):
                values = [100 * value for value in run.metrics[score][-LATE:]]
                cells += [f"{mean(values):.2f}", f"{stdev(values):.2f}"]
            lines.append(_line([title, str(seed), *cells]))
    return lines


def native(results: list[Result]) -> list[str]:
    """Return the speed of each loss, and how far the training curves of two implementations are apart."""
    runs = [
        json.loads(line) for line in (FOLDER / "results" / "native_losses.jsonl").read_text().splitlines()
    ]
    by_name = {run["loss"]: run for run in runs}
    margin = by_name["margin"]["images_per_s"]
    lines = [
        _line(["loss", "images/s", "over margin", "loss of epochs 1 to 6", "largest difference"]),
        _line(["---", "---:", "---:", "---", "---:"]),
    ]
    for name, run in by_name.items():
        own = by_name[name.partition(" (")[0]]
        apart = max(abs(a / b - 1) for a, b in zip(run["losses"], own["losses"], strict=True))
        lines.append(
            _line(
                [
                    name,
                    f"{run['images_per_s']:,.0f}",
                    f"× {run['images_per_s'] / margin:.2f}",
                    " ".join(f"{loss:.3f}" for loss in run["losses"]),
                    "" if run is own else f"{100 * apart:.2f}%",
                ]
            )
        )
    made = {f"commit {run['commit']}, {run['hardware']}, seed {run['seed']}" for run in runs}
    return [*lines, "", f"`python benchmarks/native_losses.py --root DIR --out FILE`; {'; '.join(made)}."]


def clml(results: list[Result]) -> list[str]:
    """Return the scores of CLML on CUB200-2011, beside those of the paper's settings without and with division."""
    figures = json.loads((FOLDER / "results" / "cub_clml.json").read_text())
    (row,) = (row for row in figures["rows"] if row["row"] == "clml")
    lines = [
        _line(["", "seed", "epochs", "R@1, last epoch", "R@1, best test epoch", "paper"]),
        _line(["---", "---", "---:", "---:", "---:", "---:"]),
    ]
    paper = {"margin": ("margin loss", "66.93"), "fixed": ("progressive, fixed masks", "68.43")}
    for run in results:
        if run.table == "cub_margin_paper" and run.seed == 0 and run.row in paper:
            values = [100 * value for value in run.metrics["recall@1"] if value is not None]
            title, published = paper[run.row]
            lines.append(
                _line(
                    [
                        title,
                        "0",
                        str(len(run.metrics["epoch"])),
                        f"{values[-1]:.2f}",
                        f"{max(values):.2f}",
                        published,
                    ]
                )
            )
    scores = row["scores"]["recall@1"]
    last, best = (scores[name]["values"]["0"] for name in ("last", "test"))
    lines.append(
        _line(
            [
                "CLML",
                "0",
                str(row["epochs"]["last"]["0"]),
                f"{last:.2f}",
                f"{best:.2f}",
                f"{row['paper']['recall@1']:.2f}",
            ]
        )
    )
    (origin,) = figures["origins"]
    about = f"CLML: `tables/cub_clml.yaml`, commit {origin['code']}, {origin['hardware']}, torch {origin['torch']}."
    return [*lines, "", about]


def head(results: list[Result]) -> list[str]:
    """Return the scores of training the head on stored features."""
    lines = [
        _line(["lr", "K_max, E", "R@1, selected epoch", "MAP@R", "R@1, last epoch", "MAP@R", "training"]),
        _line(["---", "---", "---:", "---:", "---:", "---:", "---:"]),
    ]
    for run in map(json.loads, (FOLDER / "results" / "head_only.jsonl").read_text().splitlines()):
        best = best_epoch(run["val_map@r"], run["k"])
        divided = "1" if run["k_max"] == 1 else f"{run['k_max']}, {run['divide_every']}"
        scores = [f"{100 * run[name][epoch]:.2f}" for epoch in (best, -1) for name in ("recall@1", "map@r")]
        lines.append(_line([f"{run['lr']:g}", divided, *scores, f"{run['train_seconds']:.0f} s"]))
    return lines


def _over(runs: list[Result], name: str) -> str:
    """Return the mean of a logged value after each of five epochs."""
    if any(name not in run.metrics for run in runs):
        return "not logged"
    return ", ".join(
        f"{mean(run.metrics[name][epoch - 1] for run in runs):.2f}" for epoch in (11, 13, 20, 21, 30)
    )


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


CODE = "5614472"


def demo_masks(results: list[Result]) -> list[str]:
    """Return dead entries, overlap and scores of learned masks on the built-in dataset."""
    return learned_masks.table(learned_masks.read(FOLDER / "results" / "masks.jsonl"))


def beyond(results: list[Result]) -> list[str]:
    """Return the scores of switches beyond the paper on the built-in dataset."""
    runs = [
        json.loads(line) for line in (FOLDER / "results" / "demo_switches.jsonl").read_text().splitlines()
    ]
    seeds = sorted({run["seed"] for run in runs})
    lines = [
        _line(["", *(f"R@1, seed {seed}" for seed in seeds), *(f"MAP@R, seed {seed}" for seed in seeds)]),
        _line(["---", *["---:"] * (2 * len(seeds))]),
    ]
    for row in dict.fromkeys(run["row"] for run in runs):
        of = {run["seed"]: run for run in runs if run["row"] == row}
        cells = [
            f"{100 * of[seed][name]:.2f}" if seed in of else "-"
            for name in ("recall@1", "map@r")
            for seed in seeds
        ]
        lines.append(_line([row, *cells]))
    made = sorted({f"commit {run['commit']}, {run['hardware']}" for run in runs})
    return [*lines, "", f"`python benchmarks/demo_switches.py FILE`; {'; '.join(made)}."]


TABLES: dict[str, Callable[[list[Result]], list[str]]] = {
    "masks": masks,
    "demo-masks": demo_masks,
    "steady": steady,
    "native": native,
    "clml": clml,
    "head": head,
    "beyond": beyond,
}
