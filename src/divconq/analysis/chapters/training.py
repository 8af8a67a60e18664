"""Chapter "Training": scores, loss, K and time of all runs."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from divconq.analysis.chapters.chapter import Chapter, Plot
from divconq.analysis.drawing import (
    COLOURS,
    INK,
    QUIET,
    RULE,
    Figure,
    legend,
    name_rows,
    new_figure,
    run_colour,
    run_dashes,
    whole_numbers,
)
from divconq.analysis.run_record import RunRecord, generalisation
from divconq.analysis.study import Study
from divconq.analysis.words import difference, percent
from divconq.config import plain_settings
from divconq.evaluation.scores import is_score, title
from divconq.evaluation.selection import best_epoch, clusters_wanted, fewer_clusters

Curve: TypeAlias = tuple[tuple[int, ...], tuple[float, ...]]  # epochs, values

UNITS = ((3600, "hours"), (60, "minutes"), (1, "seconds"))
PHASES = (QUIET, *COLOURS[5:], *COLOURS[:5])  # colours


@dataclass(frozen=True)
class Score:
    """A logged figure: its last value, and its best epoch and value.

    ``fewer_clusters`` is "K = 2 of 4" if the best epoch has fewer clusters than asked for, else "".
    """

    last: float
    best_epoch: int
    best: float
    fewer_clusters: str = ""


@dataclass(frozen=True)
class Training:
    """The training of one run: its settings and its log."""

    name: str
    config: dict[str, Any]
    curves: dict[str, Curve]  # every logged figure
    generalisation: tuple[tuple[int, float, float], ...]  # epoch, train Recall@1, test Recall@1
    seconds: dict[str, float]  # by phase
    missing: tuple[str, ...]

    @property
    def scores(self) -> dict[str, float]:
        """The last value of every score, by its title."""
        return {title(name): values[-1] for name, (_, values) in self.curves.items() if is_score(name)}

    def curve(self, name: str) -> Curve:
        """Return the epochs and values of a figure; empty if it was not logged."""
        return self.curves.get(name, ((), ()))

    def score(self, name: str) -> Score | None:
        """Return the last and the best value of a figure, by ``best_epoch``; None if it was not logged."""
        epochs, values = self.curve(name)
        ks = dict(zip(*self.curve("k"), strict=True))
        best = best_epoch(values, [ks.get(epoch) for epoch in epochs])
        if best is None:
            return None
        fewer = fewer_clusters(ks.get(epochs[best]), clusters_wanted(self.config))
        return Score(values[-1], epochs[best], values[best], fewer)


def compute(study: Study) -> tuple[Training, ...]:
    """Return the training of every run, as logged."""
    return tuple(map(training_of, study.names, study.records))


def training_of(name: str, record: RunRecord) -> Training:
    """Return the training of one run, as logged."""
    logged = dict.fromkeys(
        figure
        for row in record.metrics
        for figure, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and figure != "epoch"
    )
    seconds: dict[str, float] = {}
    for row in record.metrics:
        for phase, spent in row.get("seconds", {}).items():
            seconds[phase] = seconds.get(phase, 0.0) + float(spent)
    curves = {figure: record.curve(figure) for figure in logged}
    return Training(
        name,
        plain_settings(record.config),
        {figure: (tuple(epochs), tuple(values)) for figure, (epochs, values) in curves.items()},
        tuple(generalisation(record.metrics)),
        seconds,
        record.missing,
    )


def summary(runs: tuple[Training, ...]) -> Iterator[str]:
    """Yield sentences on the scores of the first run, compared with other runs and with its training images."""
    run = runs[0]
    score = run.score("recall@1")
    if score is None:
        yield "There is no score yet, because no epoch of this run was evaluated."
        return
    final = run.curve("recall@1")[0][-1]
    cases = f"{percent(score.last)} of cases (R@1, epoch {final})"
    text = f"The nearest neighbour of a test image has the same class in {cases}"
    if score.best_epoch == final:
        yield f"{text}."
    else:
        fewer = score.fewer_clusters and f" ({score.fewer_clusters})"
        yield f"{text}; the best epoch, {score.best_epoch}{fewer}, reached {percent(score.best)}."
    for other in runs[1:]:
        theirs = other.score("recall@1")
        if theirs is not None:
            gap = difference(score.last - theirs.last)
            yield f"The last epoch is {gap} that of {other.name} ({percent(theirs.last)})."
    for epoch, train, test in run.generalisation[-1:]:
        yield (
            f"On the training images, R@1 is {percent(train)} at epoch {epoch}: "
            f"{difference(train - test)} that on test images."
        )
    for epoch, share in list(zip(*run.curve("dead_masks"), strict=True))[-1:]:
        overlap = run.curve("overlap")[1][-1]
        yield (
            f"At epoch {epoch}, {percent(share)} of the entries of the learned masks are dead, and the mean cosine of "
            f"two masks is {overlap:.2f}."
        )


def overlap_figure(runs: tuple[Training, ...]) -> Figure | None:
    """Draw the overlap of the learned masks over the epochs. Masks that are not trained have an overlap of 0."""
    if not any(any(run.curve("overlap")[1]) for run in runs):
        return None
    return curves_figure(runs, "overlap", "Overlap, mean cosine of two masks")


def generalisation_figure(runs: tuple[Training, ...]) -> Figure | None:
    """Draw test against train Recall@1 as one path per run, with a mark at the last epoch."""
    paths = [
        (number, run.name, [(100 * train, 100 * test) for _, train, test in run.generalisation])
        for number, run in enumerate(runs)
        if run.generalisation
    ]
    if not paths:
        return None
    figure, axes = new_figure("Recall@1 of each epoch: test over train, %", height=2.9)
    handles = []
    for number, _, path in paths:
        xs, ys = zip(*path, strict=True)
        colour = run_colour(number)
        (line,) = axes.plot(xs, ys, color=colour, linestyle=run_dashes(number), linewidth=0.9)
        axes.plot(xs, ys, ".", color=colour, markersize=2.5)
        axes.plot(xs[-1], ys[-1], "o", color=colour, markersize=6)
        handles.append(line)
    limits = {"xlim": axes.get_xlim(), "ylim": axes.get_ylim()}
    axes.plot((0, 100), (0, 100), color=RULE, linewidth=0.8, zorder=0)
    axes.set(**limits, xlabel="train")
    axes.grid(True, axis="x")
    _key(figure, handles, [name for _, name, _ in paths])
    return figure


def seconds_figure(trainings: tuple[Training, ...]) -> Figure | None:
    """Draw the time of each run by phase."""
    runs = [run for run in trainings if sum(run.seconds.values()) > 0]
    if not runs:
        return None
    phases = list(dict.fromkeys(phase for run in runs for phase in run.seconds))
    longest = max(sum(run.seconds.values()) for run in runs)
    unit, name = next((unit, name) for unit, name in UNITS if longest >= 2 * unit or unit == 1)
    figure, axes = new_figure(f"Time by phase, {name}", height=1.3 + 0.28 * len(runs))
    left, handles = [0.0] * len(runs), []
    for number, phase in enumerate(phases):
        widths = [run.seconds.get(phase, 0.0) / unit for run in runs]
        bars = axes.barh(range(len(runs)), widths, left=left, height=0.55, color=PHASES[number % len(PHASES)])
        left = [start + width for start, width in zip(left, widths, strict=True)]
        handles.append(bars)
    name_rows(axes, [run.name for run in runs])
    axes.grid(False, axis="y")
    legend(figure, handles, phases, columns=4)
    return figure


def curves_figure(
    trainings: tuple[Training, ...], name: str, title: str, *, scale: float = 1, steps: bool = False
) -> Figure | None:
    """Draw a logged figure over the epochs, one line for each run."""
    runs = [(number, run) for number, run in enumerate(trainings) if run.curve(name)[0]]
    if not runs:
        return None
    figure, axes = new_figure(title)
    handles = []
    for number, run in reversed(runs):  # the first run is drawn last, on top
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
        axes.set_ylim(0, 1.1 * max(max(run.curves[name][1]) for _, run in runs))
        whole_numbers(axes.yaxis)
    _key(figure, handles[::-1], [run.name for _, run in runs])
    if len(runs) == 1:
        epochs, values = runs[0][1].curves[name]
        axes.plot(epochs[-1], scale * values[-1], "o", color=INK, markersize=3.5)
    return figure


def _key(figure: Figure, handles: list[object], names: list[str]) -> None:
    if len(names) > 1:
        legend(figure, handles, names)


TRAINING = Chapter(
    name="training",
    title="Training",
    template=Path(__file__).with_suffix(".html"),
    compute=compute,
    summary=summary,
    plots={
        "recall": Plot(
            "Recall@1 on the test images, over the epochs.",
            lambda runs: curves_figure(runs, "recall@1", "Recall@1 on test images, %", scale=100),
        ),
        "map-at-r": Plot(
            "MAP@R on the test images, over the epochs.",
            lambda runs: curves_figure(runs, "map@r", "MAP@R on test images, %", scale=100),
        ),
        "loss": Plot(
            "The loss, over the epochs.", lambda runs: curves_figure(runs, "loss", "Loss, mean of the epoch")
        ),
        "k": Plot(
            "K, over the epochs.",
            lambda runs: curves_figure(runs, "k", "K, clusters and subspaces", steps=True),
        ),
        "overlap": Plot("The overlap of the masks, over the epochs.", overlap_figure),
        "dead-masks": Plot(
            "The dead entries of the learned masks, over the epochs.",
            lambda runs: curves_figure(runs, "dead_masks", "Dead entries of the learned masks, %", scale=100),
        ),
        "learning-rate": Plot(
            "The learning rate, over the epochs.",
            lambda runs: curves_figure(runs, "lr", "Learning rate, end of the epoch"),
        ),
        "generalisation": Plot("Train and test Recall@1, one path for each run.", generalisation_figure),
        "seconds": Plot("Time of each run by phase.", seconds_figure),
    },
)
