"""The figure and the sentence on known factors, for the chapters on clusters and subspaces."""

import math
from collections.abc import Iterator, Sequence

from divconq.analysis.drawing import WIDE, WIDTH, Figure, heat_map, new_figure, number_rows, short
from divconq.analysis.measures.factors import FactorTable
from divconq.analysis.words import number

WEAK = 0.1  # an NMI below this is not worth a sentence


def factor_figure(factors: FactorTable | None, rows: str) -> Figure | None:
    """Draw the NMI of each cluster or subspace with each factor."""
    if factors is None or factors.values.numel() == 0:
        return None
    values = factors.values.tolist()
    k, columns = factors.values.shape
    finite = [value for row in values for value in row if math.isfinite(value)]
    is_wide = columns > 6
    figure, axes = new_figure(
        f"NMI of each {rows} with each factor",
        width=WIDE if is_wide else WIDTH,
        height=min(1.5 + 0.24 * k, 5.4),
    )
    least = 0.05 if is_wide else 0.0  # small numbers are left out of a large table

    def written(value: float) -> str:
        return f"{value:.2f}".lstrip("0") if value >= least else ""

    heat_map(axes, values, top=max([0.25, *finite]), written=written)
    axes.set_xticks(
        [column + 0.5 for column in range(columns)],
        [short(name) for name in factors.names],
        rotation=35,
        ha="right",
        rotation_mode="anchor",
    )
    number_rows(axes, k)
    axes.set_ylabel(rows)
    return figure


def factor_sentences(factors: FactorTable | None, word: str) -> Iterator[str]:
    """Yield a sentence on the factors that the clusters or subspaces follow, grouped by factor."""
    if factors is None or not factors.names:
        return
    rows: dict[str, list[tuple[int, float]]] = {}
    for place, item in enumerate(factors.strongest(WEAK), 1):
        if item is not None:
            rows.setdefault(item[0], []).append((place, item[1]))
    if not rows:
        yield f"No {word} follows a known factor (every NMI is below {WEAK})."
        return
    listed = [f"{name} ({_numbered(word, [place for place, _ in found])})" for name, found in rows.items()]
    values = [value for found in rows.values() for _, value in found]
    low, high = number(min(values)), number(max(values))
    span = high if low == high else f"{low} to {high}"
    yield f"The {word}s follow these known factors: {', '.join(listed)}; NMI {span}."


def _numbered(word: str, numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"{word} {numbers[0]}"
    return f"{word}s {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
