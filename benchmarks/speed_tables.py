"""The tables of speed.md, from the measurements in benchmarks/results/speed_*.jsonl."""

import json
from pathlib import Path
from statistics import mean

RESULTS = Path(__file__).parent / "results"
MEBIBYTE = 2**20


def read_lines(name: str) -> list[dict]:
    """Return the objects of results/NAME.jsonl."""
    return [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text().splitlines()]


def measurement(file: str, name: str) -> dict:
    return next(found for found in read_lines(file) if found["name"] == name)


def markdown(head: list[str], rows: list[list[str]], left: int = 1) -> list[str]:
    """Return the lines of a table; all columns but the first ones are aligned right."""
    line = ["---"] * left + ["---:"] * (len(head) - left)
    return [f"| {' | '.join(cells)} |" for cells in (head, line, *rows)]


def step() -> list[str]:
    """Images per second of the training step, one row per measurement."""
    head = [
        "date",
        "commit",
        "",
        "batch",
        "(a) bare step",
        "(b) training",
        "b / a",
        "(c) plain loop",
        "b / c",
    ]
    rows = []
    for found in read_lines("speed_step"):
        training = found["training"]
        plain = training.get("plain", {}).get("images_per_s")
        rows.append(
            [
                found["date"][:10],
                found["commit"],
                found["about"],
                str(training["batch"]),
                f"{training['bare']['images_per_s']:,.0f}",
                f"{training['ours']['images_per_s']:,.0f}",
                f"{training['ours_to_bare']:.3f}",
                f"{plain:,.0f}" if plain else "",
                f"{training['ours_to_plain']:.2f}" if plain else "",
            ]
        )
    return markdown(head, rows, left=3)


def embedding() -> list[str]:
    """Images per second of the pass that embeds all images."""
    rows = [
        [str(found["training"]["batch"]), f"{found['embedding']['images_per_s']:,.0f}"]
        for found in read_lines("speed_step")
        if "embedding" in found
    ]
    return markdown(["batch of training", "embedding pass, images/s"], rows)


def start() -> list[str]:
    """Seconds until training runs at full speed, one row per start of a program."""
    head = [
        "commit",
        "",
        "read, decode, build",
        "first epoch: compile",
        "first evaluation: compile",
        "warm-up",
    ]
    rows = []
    for found in read_lines("speed_start"):
        prepared = found["seconds until the folder is there"]
        seconds = (
            prepared,
            found["seconds until the first epoch is logged"] - prepared,
            found["evaluations, first and median"][0],
            found["warm-up: that, less an epoch"],
        )
        rows.append([found["commit"], found["about"], *(f"{value:.1f}" for value in seconds)])
    return markdown(head, rows, left=2)


def whole_run() -> list[str]:
    """The 120 epochs of the whole run, after its warm-up."""
    found = measurement("speed_start", "h200_full_run")
    first, median = found["evaluations, first and median"]
    rest = found["seconds from the first epoch's end to the last's"]
    rows = [
        ["119 epochs, 24 evaluations, 11 divisions", f"{rest:.1f} s"],
        ["the same without the first evaluation, which compiles", f"{rest - first:.1f} s"],
        [
            f"median epoch ({found['images/s, median']:,.0f} images/s)",
            f"{found['median epoch']:.3f} s",
        ],
        ["median evaluation, with NMI", f"{median:.3f} s"],
        [
            "median division: embedding pass, k-means, matching, bisection",
            f"{found['divisions, first and median'][1]:.3f} s",
        ],
        [
            "divisions without the first, share of training",
            f"{found['division / training, without the first']:.1%}",
        ],
        ["log and checkpoints, share of training", f"{found['neither phase / training']:.1%}"],
    ]
    return markdown(["after the first epoch", ""], rows)


def overlap() -> list[str]:
    """The overlap of the masks during the whole run."""
    log = {record["epoch"]: record for record in measurement("speed_start", "h200_full_run")["log"]}
    rows = []
    for epoch in (11, 15, 20, 21, 25, 30, 40, 50, 60, 80, 120):
        record = log[epoch]
        recall = f"{100 * record['recall@1']:.2f}" if "recall@1" in record else ""
        rows.append([str(epoch), str(record["k"]), f"{record['overlap']:.3f}", recall])
    return markdown(["epoch", "K", "L_s", "R@1, test classes"], rows)


def compiled_twice() -> list[str]:
    """Two runs with the same settings, each compiled from nothing."""
    once, again = read_lines("speed_compiled_twice")

    def figures(record: dict) -> dict:
        return {name: value for name, value in record.items() if name not in ("seconds", "images_per_s")}

    same = sum(figures(a) == figures(b) for a, b in zip(once["log"], again["log"], strict=True))
    rows = []
    for found in (once, again):
        compile_seconds = (
            found["seconds until the first epoch is logged"] - found["seconds until the folder is there"]
        )
        warm_up = found["warm-up: that, less an epoch"]
        rows.append([found["about"], f"{compile_seconds:.1f} s", f"{warm_up:.1f} s"])
    return [
        *markdown(["", "first epoch: compile", "warm-up"], rows),
        "",
        f"Epochs with the same loss and scores to the last digit: {same} of {len(once['log'])}.",
    ]


def precision() -> list[str]:
    """Scores after four epochs, as training runs by default and in fp32 without compilation."""
    runs = [run for run in measurement("speed_precision", "h200_accuracy")["runs"] if run["loss"] == "margin"]
    fast, eager = ([run for run in runs if run["way"] == way] for way in ("fast", "eager"))

    def cell(some: list[dict], name: str) -> str:
        values = [100 * run[name] for run in some]
        return f"{' '.join(f'{value:.2f}' for value in values)} (mean {mean(values):.2f})"

    def rates(some: list[dict]) -> str:
        values = [rate for run in some for rate in run["images_per_s"][1:]]
        return f"{min(values):,} to {max(values):,}"

    apart = [abs(mean(a["losses"]) / mean(b["losses"]) - 1) for a, b in zip(fast, eager, strict=True)]
    rows = [
        ["R@1 after epoch 4, seeds 0, 1, 2", cell(fast, "recall@1"), cell(eager, "recall@1")],
        ["MAP@R after epoch 4", cell(fast, "map@r"), cell(eager, "map@r")],
        [
            "mean loss of the first 20 steps, difference",
            "",
            " ".join(f"{100 * value:.2f}%" for value in apart),
        ],
        ["images/s, epochs 2 to 4", rates(fast), rates(eager)],
    ]
    return markdown(["margin loss", "default (bf16, compiled)", "fp32, not compiled"], rows)


def sop_size() -> list[str]:
    """Images per second and division of a run of the size of Stanford Online Products."""
    (found,) = read_lines("speed_sop_size")
    rows = [
        [
            str(record["epoch"]),
            str(record["k"]),
            f"{record['images_per_s']:,.0f}",
            f"{record['seconds']['divide']:.1f}" if "divide" in record["seconds"] else "",
        ]
        for record in found["epochs"][1:]
    ]
    return markdown(["epoch", "K", "images/s", "division, s"], rows)


def algorithms() -> list[str]:
    """Seconds of k-means, search and NMI."""
    found = measurement("speed_algorithms", "h200_kmeans_search_nmi")
    kmeans, knn, nmi = (found[part] for part in ("kmeans", "knn", "nmi"))

    def row(title: str, part: dict) -> list[str]:
        return [title, f"{part['ways']['divconq']['seconds']:.2f}"]

    size = f"{knn['points']:,} x {knn['dim']}"
    rows = [
        row(
            f"k-means, {kmeans['points']:,} x {kmeans['dim']}, K = {kmeans['k']}, {kmeans['iterations']} iterations",
            kmeans,
        ),
        row(f"Recall@1, 10, 100 and MAP@R, {size}", knn),
        row(f"NMI, {size}, {nmi['classes']:,} clusters", nmi),
    ]
    return markdown(["", "seconds, median of 3"], rows)


def memory() -> list[str]:
    """Memory of an evaluation beyond the embeddings."""
    gpu, cpu = (
        measurement("speed_algorithms", name)["memory"] for name in ("h200_algorithms", "epyc_memory")
    )

    def mebibytes(count: int) -> str:
        return f"{count / MEBIBYTE:,.0f} MiB"

    rows = [
        [
            f"{a['points']:,}",
            mebibytes(a["bytes"]),
            mebibytes(b["bytes"]),
            mebibytes(4 * a["points"] ** 2),
        ]
        for a, b in zip(gpu, cpu, strict=True)
    ]
    return markdown(["points x 512", "H200", "two threads of AMD EPYC", "all distances at once"], rows)


TABLES = {
    function.__name__: function
    for function in (
        step,
        embedding,
        start,
        whole_run,
        overlap,
        compiled_twice,
        precision,
        sop_size,
        algorithms,
        memory,
    )
}
