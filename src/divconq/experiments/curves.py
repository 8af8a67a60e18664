"""Draw the scores of a table over the numeric setting in which its rows differ."""

from collections.abc import Mapping, Sequence
from typing import Any

from divconq.analysis.drawing import COLOURS, INK, PAPER, QUIET, WIDE, Axes, Figure, legend, new_grid
from divconq.evaluation.scores import title
from divconq.experiments.figures import SELECTIONS

WORDS = {
    "dim": "dimensions of the embedding, d",
    "k_max": "largest number of clusters, K_max",
    "divide_every": "epochs between divisions, E",
}
PANELS = 2  # metrics
LOWEST_SPAN = 4.0  # points on the y axis, so that noise does not look like an effect
DOTTED = (0, (1, 1.2))  # the paper's scores

Figures = Mapping[str, Any]


def curves_figure(figures: Figures) -> Figure | None:
    """Draw the first two metrics over the setting, one line for each entry of ``figures["curves"]["lines"]``.

    A line is the mean over the seeds, its band the standard deviation; the paper's scores are thin dotted lines. Hollow
    points were selected with fewer clusters than k_max. The epoch is the one selected on held-out classes, or the last
    one if no classes are held out. Return None if the table has no such setting, or no results yet.
    """
    curves = figures["curves"]
    if curves is None or not any(row["runs"] for row in figures["rows"]):
        return None
    selection = "held_out" if "held_out" in figures["selections"] else "last"
    rows = {row["row"]: row for row in figures["rows"]}
    metrics = figures["metrics"][:PANELS]
    head = f"{figures['title']}: {SELECTIONS[selection]}, {_seeds(figures)}"
    figure, panels = new_grid(head, len(metrics), len(metrics), width=WIDE, height=2.9)
    handles: dict[str, Any] = {}
    for axes, metric in zip(panels, metrics, strict=True):
        axes.set_title(f"{title(metric)}, %", fontsize=8, color=QUIET, loc="left")
        for number, line in enumerate(curves["lines"]):
            colour = INK if line["level"] else COLOURS[number % len(COLOURS)]
            _draw(axes, line, rows, metric, selection, colour, handles)
        _value_axis(axes, [x for line in curves["lines"] for x in line["rows"].values() if x is not None])
        low, high = axes.get_ylim()
        missing = max(0.0, LOWEST_SPAN - (high - low))
        axes.set_ylim(low - missing / 2, high + missing / 2)
        axes.set_xlabel(WORDS.get(curves["setting"], curves["setting"]))
    if len(handles) > 1:
        legend(figure, list(handles.values()), list(handles), columns=3)
    return figure


def _draw(
    axes: Axes,
    line: Mapping[str, Any],
    rows: Mapping[str, Figures],
    metric: str,
    selection: str,
    colour: str,
    handles: dict[str, Any],
) -> None:
    """Draw one line in one panel, and the paper's line if it has one. Rows without results leave no point."""
    scores = {name: rows[name]["scores"][metric][selection] for name in line["rows"]}
    points = sorted(
        (0 if line["level"] else line["rows"][name], score["mean"], score["deviation"] or 0.0)
        for name, score in scores.items()
        if score is not None
    )
    paper = sorted(
        (0 if line["level"] else value, rows[name]["paper"][metric])
        for name, value in line["rows"].items()
        if metric in rows[name]["paper"]
    )
    if points and line["level"]:
        ((_, mean, deviation),) = points
        handles[line["title"]] = axes.axhline(mean, color=colour, linewidth=1.0, linestyle="--")
        axes.axhspan(mean - deviation, mean + deviation, color=colour, alpha=0.1, linewidth=0)
    elif points:
        xs, means, deviations = zip(*points, strict=True)
        (handle,) = axes.plot(xs, means, color=colour, marker="o", markersize=3.5)
        handles[line["title"]] = handle
        early = [row for row in line["rows"] if scores[row] and rows[row]["fewer_clusters"][selection]]
        if early:
            places = [line["rows"][row] for row in early], [scores[row]["mean"] for row in early]
            (handle,) = axes.plot(*places, "o", markersize=3.5, color=colour, markerfacecolor=PAPER, zorder=3)
            handles["fewer clusters than k_max"] = handle
        low, high = ([m + s * d for m, d in zip(means, deviations, strict=True)] for s in (-1, 1))
        axes.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)
    if paper and line["level"]:
        handles["the paper"] = axes.axhline(paper[0][1], color=colour, linewidth=0.8, linestyle=DOTTED)
    elif paper:
        xs, scores_of_paper = zip(*paper, strict=True)
        style = {"linewidth": 0.8, "linestyle": DOTTED, "marker": ".", "markersize": 3}
        (handles["the paper"],) = axes.plot(xs, scores_of_paper, color=colour, **style)


def _seeds(figures: Figures) -> str:
    numbers = sorted({len(row["runs"]) for row in figures["rows"] if row["runs"]})
    words = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    return f"{words} seed{'' if numbers[-1] == 1 else 's'}"


def _value_axis(axes: Axes, values: Sequence[float]) -> None:
    """Scale the x axis by powers of two, with a tick at each value; evenly if a value is not above 0."""
    from matplotlib.ticker import NullLocator

    ticks = sorted(set(values))
    if ticks[0] > 0:
        axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
