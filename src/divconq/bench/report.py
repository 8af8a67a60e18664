"""Format a report for the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from divconq.io.terminal import aligned

ROWS = {
    "bare": "(a) the network's step alone",
    "ours": "(b) training, end to end",
    "plain": "(c) plain eager loop, DataLoader",
}
WAYS = {"whole": "captured whole", "network": "network captured", "plain": "not captured"}


def text(report: Mapping[str, Any]) -> str:
    """Return all measurements, one block per part."""
    blocks = [machine(report)]
    if "training" in report:
        blocks.append(training(report["training"], report["images"]))
    if "embedding" in report:
        blocks.append(
            f"embedding pass, {report['images']['count']:,} images\n  {'  '.join(_rate(report['embedding']))}"
        )
    for part, title in (("kmeans", "k-means"), ("knn", "search: recall@k, MAP@R"), ("nmi", "NMI")):
        if part in report:
            blocks.append(algorithm(title, report[part]))
    if "memory" in report:
        blocks.append(memory(report["memory"]))
    return "\n\n".join(blocks)


def machine(report: Mapping[str, Any]) -> str:
    """Return hardware, versions and date in one line."""
    return (
        f"{report['hardware']}, {report['cpus']} CPUs, torch {report['torch']}, "
        f"{report['date'][:10]}, {report['code']}"
    )


def training(found: Mapping[str, Any], images: Mapping[str, Any]) -> str:
    """Return the rates of training and their ratios."""
    head = (
        f"training: {found['backbone']}, {found['image_size']} px, batch {found['batch']}, {found['precision']}, "
        f"{WAYS[found['way']]}, {found['augmentation']}, {found['crop']}, K = {found['clusters']}, "
        f"{images['count']:,} images of {images['data']}"
    )
    rows = [(f"  {title}", *_rate(found[name])) for name, title in ROWS.items() if name in found]
    compared = [
        f"{title} = {found[name]:.3f}"
        for name, title in (("ours_to_bare", "b / a"), ("ours_to_plain", "b / c"))
        if name in found
    ]
    return "\n".join([head, *aligned(rows, head=False), f"  {',  '.join(compared)}"])


def algorithm(title: str, found: Mapping[str, Any]) -> str:
    """Return the seconds of each library, their ratio to ours, and its figures.

    >>> ways = {"divconq": {"seconds": 0.5, "nmi": 0.9}, "faiss": {"seconds": 1.0, "nmi": 0.8}, "scikit-learn": None}
    >>> print(algorithm("NMI", {"points": 1000, "dim": 8, "classes": 100, "ways": ways}))
    NMI: 1,000 x 8, 100 classes
      divconq             0.500 s  1.0x  nmi 0.9000
      faiss               1.000 s  2.0x  nmi 0.8000
      scikit-learn  not installed
    """
    sizes = f"{found['points']:,} x {found['dim']}"
    kind = (
        f"K = {found['k']}, {found['iterations']} iterations"
        if "k" in found
        else f"{found['classes']:,} classes"
    )
    ours = next(iter(found["ways"].values()))["seconds"]
    rows = []
    for name, way in found["ways"].items():
        if way is None:
            rows.append((f"  {name}", "not installed", "", ""))
            continue
        figures = "  ".join(f"{key} {value:.4f}" for key, value in way.items() if key != "seconds")
        rows.append((f"  {name}", f"{way['seconds']:.3f} s", f"{way['seconds'] / ours:.1f}x", figures))
    return "\n".join([f"{title}: {sizes}, {kind}", *aligned(rows, head=False)])


def memory(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the memory by the number of points; in brackets, the memory of all distances.

    >>> print(memory([{"points": 10_000, "dim": 8, "bytes": 3 << 20}]))
    memory of an evaluation beyond the embeddings (in brackets: all distances at once)
      10,000 x 8  3 MiB  (381 MiB)
    """
    cells = []
    for row in rows:
        taken = "not known" if row["bytes"] is None else _mebibytes(row["bytes"])
        everything = f"({_mebibytes(4 * row['points'] ** 2)})"
        cells.append((f"  {row['points']:,} x {row['dim']}", taken, everything))
    head = "memory of an evaluation beyond the embeddings (in brackets: all distances at once)"
    return "\n".join([head, *aligned(cells, left=0, head=False)])


def _rate(found: Mapping[str, Any]) -> tuple[str, str]:
    if "error" in found:
        return f"failed: {found['error']}", ""
    low, high = min(found["rounds"]), max(found["rounds"])
    rounds = f"({low:,.0f} to {high:,.0f} in {len(found['rounds'])} rounds)"
    return f"{found['images_per_s']:,.0f} images/s", rounds


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"
