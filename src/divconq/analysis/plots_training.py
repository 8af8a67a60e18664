"""Figures of how runs were trained, one line for each run; no computation."""

from divconq.analysis.findings import Findings, Training
from divconq.analysis.style import (
    COLOURS,
    INK,
    QUIET,
    RULE,
    Figure,
    legend,
    run_colour,
    run_dashes,
    sheet,
    short,
    whole_numbers,
)


def recall(findings: Findings) -> Figure | None:
    """Recall@1 on the test images over the epochs."""
    return _curves(findings, "recall@1", "Recall@1 on test images, %", scale=100)


def map_at_r(findings: Findings) -> Figure | None:
    """MAP@R on the test images over the epochs."""
    return _curves(findings, "map@r", "MAP@R on test images, %", scale=100)


def loss(findings: Findings) -> Figure | None:
    """The loss over the epochs."""
    return _curves(findings, "loss", "Loss, mean of the epoch")


def number_of_clusters(findings: Findings) -> Figure | None:
    """K over the epochs, in steps."""
    return _curves(findings, "k", "K, clusters and subspaces", steps=True)


def generalisation(findings: Findings) -> Figure | None:
    """Train against test Recall@1: a path for each run, its last epoch marked."""
    paths = [
        (number, run, [(100 * train, 100 * test) for _, train, test in run.generalisation])
        for number, run in enumerate(findings.training)
        if run.generalisation
    ]
    if not paths:
        return None
    figure, axes = sheet("Recall@1 of each epoch: test over train, %", height=2.9)
    handles = []
    for number, _, path in paths:
        xs, ys = zip(*path, strict=True)
        colour = run_colour(number)
        (line,) = axes.plot(xs, ys, color=colour, linestyle=run_dashes(number), linewidth=0.9)
        axes.plot(xs, ys, ".", color=colour, markersize=2.5)
        axes.plot(xs[-1], ys[-1], "o", color=colour, markersize=6)
        handles.append(line)
    low, high = axes.get_xlim()
    left, right = axes.get_ylim()
    axes.plot((0, 100), (0, 100), color=RULE, linewidth=0.8, zorder=0)
    axes.set(xlim=(low, high), ylim=(left, right), xlabel="train")
    axes.grid(True, axis="x")
    _key(figure, handles, [run for _, run, _ in paths])
    return figure


def seconds(findings: Findings) -> Figure | None:
    """Where the time of each run went, by phase."""
    runs = [run for run in findings.training if sum(run.seconds.values()) > 0]
    if not runs:
        return None
    phases = list(dict.fromkeys(phase for run in runs for phase in run.seconds))
    longest = max(sum(run.seconds.values()) for run in runs)
    unit, name = next((unit, name) for unit, name in UNITS if longest >= 2 * unit or unit == 1)
    figure, axes = sheet(f"Time by phase, {name}", height=1.3 + 0.28 * len(runs))
    left, handles = [0.0] * len(runs), []
    for number, phase in enumerate(phases):
        widths = [run.seconds.get(phase, 0.0) / unit for run in runs]
        bars = axes.barh(range(len(runs)), widths, left=left, height=0.55, color=PHASES[number % len(PHASES)])
        left = [start + width for start, width in zip(left, widths, strict=True)]
        handles.append(bars)
    axes.set_yticks(range(len(runs)), [short(run.name) for run in runs])
    axes.set_ylim(len(runs) - 0.4, -0.6)
    axes.grid(False, axis="y")
    axes.grid(True, axis="x")
    axes.spines["left"].set_visible(False)
    legend(figure, handles, phases, columns=4)
    return figure


UNITS = ((3600, "hours"), (60, "minutes"), (1, "seconds"))
PHASES = (QUIET, *COLOURS[5:], *COLOURS[:5])


def _curves(
    findings: Findings, name: str, title: str, *, scale: float = 1, steps: bool = False
) -> Figure | None:
    runs = [
        (number, run) for number, run in enumerate(findings.training) if run.curves.get(name, ((), ()))[0]
    ]
    if not runs:
        return None
    figure, axes = sheet(title)
    handles = []
    for number, run in reversed(runs):  # the run that is looked at lies on top
        epochs, values = run.curves[name]
        (line,) = axes.plot(
            epochs,
            [scale * value for value in values],
            color=run_colour(number),
            linestyle=run_dashes(number),
            drawstyle="steps-post" if steps else "default",
            marker="o" if len(epochs) == 1 else "",
            markersize=4,
        )
        handles.append(line)
    axes.set_xlabel("epoch")
    axes.margins(x=0.02)
    whole_numbers(axes.xaxis)
    if steps:
        highest = max(max(run.curves[name][1]) for _, run in runs)
        axes.set_ylim(0, 1.1 * highest)
        whole_numbers(axes.yaxis)
    _key(figure, handles[::-1], [run for _, run in runs])
    if len(runs) == 1:
        epochs, values = runs[0][1].curves[name]
        axes.plot(epochs[-1], scale * values[-1], "o", color=INK, markersize=3.5)
    return figure


def _key(figure: Figure, handles: list[object], runs: list[Training]) -> None:
    if len(runs) > 1:
        legend(figure, handles, [run.name for run in runs])
