"""How much the clusters of several runs change at each division, for the chapter "Clusters"."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from divconq.analysis.drawing import Figure, legend, new_figure, run_colour, run_dashes, whole_numbers
from divconq.analysis.measures.clusters import partition_change
from divconq.analysis.run_record import RunRecord
from divconq.analysis.study import labels_by


@dataclass(frozen=True)
class Consistency:
    """The divisions of a run, each compared with the previous one: NMI, and share of images that kept their cluster.

    ``run`` is the place of the run among all runs of the report.
    """

    run: int
    name: str
    divide_every: int
    epochs: tuple[int, ...]
    nmi: tuple[float, ...]
    kept: tuple[float, ...]


def consistency_of(names: Sequence[str], records: Sequence[RunRecord]) -> tuple[Consistency, ...]:
    """Return the consistency of every run with several divisions, ordered by E; empty if there is only one such run.

    A run is named by its E, "E = 2"; also by its name if several runs have this E. See the paper's supplement,
    "Cluster consistency during training".
    """
    found = [
        line for run, record in enumerate(records) if (line := _compared(run, names[run], record)).epochs
    ]
    labels = labels_by([line.divide_every for line in found], [line.name for line in found], "E")
    named = [
        Consistency(line.run, label, line.divide_every, line.epochs, line.nmi, line.kept)
        for line, label in zip(found, labels, strict=True)
    ]
    return tuple(sorted(named, key=lambda line: (line.divide_every, line.run))) if len(named) > 1 else ()


def _compared(run: int, name: str, record: RunRecord) -> Consistency:
    """Return the consistency of a run. Divisions of other images than the previous one are left out."""
    pairs = [
        (new.epoch, partition_change(new.clusters, old.clusters, new.k, old.k))
        for old, new in zip(record.divisions, record.divisions[1:], strict=False)
        if len(old.clusters) == len(new.clusters) > 0
    ]
    return Consistency(
        run,
        name,
        record.config.division.divide_every,
        tuple(epoch for epoch, _ in pairs),
        tuple(change.nmi for _, change in pairs),
        tuple(change.kept for _, change in pairs),
    )


def consistency_figure(
    runs: Sequence[Consistency], measure: Literal["nmi", "kept"], title: str, scale: float = 1.0
) -> Figure | None:
    """Draw a measure over the epochs, one line for each run; None without runs."""
    if not runs:
        return None
    figure, axes = new_figure(title, height=2.9)
    handles = []
    for line in runs:
        (handle,) = axes.plot(
            line.epochs,
            [scale * value for value in getattr(line, measure)],
            color=run_colour(line.run),
            linestyle=run_dashes(line.run),
            marker="o",
            markersize=3,
        )
        handles.append(handle)
    axes.set_ylim(0, 1.05 * scale)
    axes.set_xlabel("division after epoch")
    whole_numbers(axes.xaxis)
    legend(
        figure,
        handles,
        [line.name for line in runs],
        columns=3 if max(len(line.name) for line in runs) <= 8 else 1,
    )
    return figure
