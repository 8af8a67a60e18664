"""Render the figures of a table as text, Markdown, LaTeX and JSON."""

import itertools
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from divconq.evaluation.scores import title
from divconq.experiments.figures import SELECTIONS
from divconq.io.atomic import write_atomically
from divconq.io.terminal import aligned

MISSING = "–"
WHERE = {"held_out": "on held-out classes", "test": "on test classes"}  # an epoch is selected
Rows = Sequence[Mapping[str, Any]]


def text(figures: Mapping[str, Any]) -> str:
    """Return the table for a terminal."""
    lines: list[str] = []
    for section, rows in _sections(figures):
        lines += [section, ""] if section else []
        lines += [*aligned([_head(figures), *_lines(figures, rows)], left=3), ""]
    notes = [line for note in _notes(figures) for line in textwrap.wrap(note, 100)]
    return "\n".join([*lines, *notes]) + "\n"


def markdown(figures: Mapping[str, Any]) -> str:
    """Return the table in Markdown, with notes that explain its columns."""
    head = _head(figures)
    lines = [f"## {figures['title']}", ""]
    for section, rows in _sections(figures):
        lines += [f"### {section}", ""] if section else []
        lines += [_markdown_line(head), "|---|---|---|" + "---:|" * (len(head) - 3)]
        lines += [*map(_markdown_line, _lines(figures, rows)), ""]
    return "\n".join([*lines, *_notes(figures)]) + "\n"


def brief(
    figures: Mapping[str, Any],
    metrics: Sequence[str] = ("recall@1", "map@r"),
    section: str | None = None,
) -> list[str]:
    """Return the lines of a short Markdown table: one line per row, scores of one epoch.

    The epoch is the one selected on held-out classes, or the last one if no classes are held out. Rows without
    results are left out. ``section`` limits the table to the rows whose names begin with it.
    """
    selection = "held_out" if "held_out" in figures["selections"] else "last"
    head = ["", "seeds"]
    for metric in metrics:
        head += [title(metric), "over baseline"]
    lines = [[*head, "training"], ["---", "---"] + ["---:"] * (2 * len(metrics) + 1)]
    for row in figures["rows"]:
        if not row["runs"] or (section is not None and not row["row"].startswith(f"{section}-")):
            continue
        line = [row["title"], _seeds(row)]
        for metric in metrics:
            score = row["scores"][metric][selection]
            line += [_spread(score), _difference(row, score)]
        lines.append([*line, _training(row)])
    return [_markdown_line(line) for line in lines]


def _markdown_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def latex(figures: Mapping[str, Any]) -> str:
    """Return the table in LaTeX, which needs the package booktabs."""
    head, body = _head(figures), list[str]()
    for section, rows in _sections(figures):
        if section:
            rule = [r"\midrule"] if body else []
            body += [*rule, rf"\multicolumn{{{len(head)}}}{{l}}{{\emph{{{_tex(section)}}}}} \\"]
        for line in _lines(figures, rows):
            if line[0] and body:
                body.append(r"\midrule")
            body.append(" & ".join(map(_tex, line)) + r" \\")
    return "\n".join(
        [
            r"\begin{table*}",
            r"\centering",
            rf"\caption{{{_tex(figures['title'])}. {' '.join(map(_tex, _notes(figures)))}}}",
            rf"\begin{{tabular}}{{lll{'r' * (len(head) - 3)}}}",
            r"\toprule",
            " & ".join(map(_tex, head)) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table*}",
            "",
        ]
    )


def _sections(figures: Mapping[str, Any]) -> list[tuple[str | None, Rows]]:
    """Return the title and the rows of each section. The title is None if the table has no sections."""
    return [
        (section, list(rows))
        for section, rows in itertools.groupby(figures["rows"], lambda row: row.get("section"))
    ]


def _head(figures: Mapping[str, Any]) -> list[str]:
    head = ["", "seeds", "score"]
    for selection in figures["selections"]:
        head += [SELECTIONS[selection]] + (["over baseline"] if _compared(figures) else [])
    return head + (["paper"] if _has_paper(figures) else []) + ["training"]


def _lines(figures: Mapping[str, Any], rows: Rows) -> list[list[str]]:
    """Return the cells of each line; a row has one line per metric."""
    papers = {row["row"]: row["paper"] for row in figures["rows"]}
    lines = []
    for row in rows:
        for number, metric in enumerate(figures["metrics"]):
            first = number == 0
            line = [row["title"] if first else "", _seeds(row) if first else "", title(metric)]
            for selection in figures["selections"]:
                score = row["scores"][metric][selection]
                line += [_spread(score)] + ([_difference(row, score)] if _compared(figures) else [])
            if _has_paper(figures):
                line.append(_paper(metric, row["paper"], papers.get(row["baseline"], {})))
            lines.append([*line, _training(row) if first else ""])
    return lines


def _compared(figures: Mapping[str, Any]) -> bool:
    return any(row["baseline"] for row in figures["rows"])


def _has_paper(figures: Mapping[str, Any]) -> bool:
    return any(row["paper"] for row in figures["rows"])


def _seeds(row: Mapping[str, Any]) -> str:
    done, all_of_them = len(row["seeds"]) - len(row["missing"]), len(row["seeds"])
    return str(done) if done == all_of_them else f"{done} of {all_of_them}"


def _spread(score: Mapping[str, Any] | None) -> str:
    if score is None:
        return MISSING
    return f"{score['mean']:.2f}" + (f" ± {score['deviation']:.2f}" if score["deviation"] is not None else "")


def _difference(row: Mapping[str, Any], score: Mapping[str, Any] | None) -> str:
    if row["baseline"] is None:
        return ""
    if score is None or score["difference"] is None:
        return MISSING
    gain = score["difference"]
    text = f"{gain['mean']:+.2f}"
    if gain["low"] is not None:
        text += f" [{gain['low']:+.2f}, {gain['high']:+.2f}]"
    return text + (f" ({gain['n']} of {score['n']} seeds)" if gain["n"] < score["n"] else "")


def _paper(metric: str, ours: Mapping[str, float], baseline: Mapping[str, float]) -> str:
    if metric not in ours:
        return ""
    gain = f" ({ours[metric] - baseline[metric]:+.2f})" if metric in baseline else ""
    return f"{ours[metric]:.2f}{gain}"


def _training(row: Mapping[str, Any]) -> str:
    cost = row["seconds"]
    if cost is None:
        return MISSING
    spread = f" ± {cost['deviation']:.0f}" if cost.get("deviation") is not None else ""
    ratio = f" (× {cost['over_baseline']:.2f})" if cost["over_baseline"] is not None else ""
    return f"{cost['mean']:.0f}{spread} s{ratio}"


def _notes(figures: Mapping[str, Any]) -> list[str]:
    if "notes" in figures:
        return list(figures["notes"])
    notes = [
        "Scores are in percent: mean ± sample standard deviation over the seeds. The columns over baseline have the "
        "mean difference to the baseline with the same seed and its 95% confidence interval (Student's t). The best "
        "test epoch is selected by R@1 on the test classes themselves, so it is too optimistic."
    ]
    if "held_out" in figures["selections"]:
        notes.append(
            "Held-out classes are training classes that are not trained on; MAP@R on them selects the epoch."
        )
    if figures["overrides"]:
        changed = ", ".join(f"{name} {shown(value)}" for name, value in figures["overrides"].items())
        notes.append(f"Set for all rows: {changed}.")
    notes += fewer_clusters_note(figures["rows"], figures["selections"])
    missing = [
        f"{row['title']}: seed{'s' if len(row['missing']) > 1 else ''} {', '.join(map(str, row['missing']))}"
        for row in figures["rows"]
        if row["missing"]
    ]
    if missing:
        notes.append(f"Not run yet: {'; '.join(missing)}.")
    origins = [
        f"{origin['runs']} runs of {origin['code']} on {origin['hardware']}, torch {origin['torch']}"
        for origin in figures["origins"]
    ]
    if origins:
        notes.append(f"{'; '.join(origins)}.")
    return notes


def fewer_clusters_note(rows: Rows, selections: Sequence[str]) -> list[str]:
    """Return a note on the runs whose selected epoch has fewer clusters than K_max, or no note."""
    runs = []
    for row in rows:
        found: dict[int, list[str]] = {}
        for selection in (name for name in selections if name in WHERE):
            for seed, words in row["fewer_clusters"][selection].items():
                epoch = f"epoch {row['epochs'][selection][seed]}, {words}"
                found.setdefault(seed, []).append(f"{WHERE[selection]} {epoch}")
        runs += [f"{row['title']}, seed {seed} ({'; '.join(epochs)})" for seed, epochs in found.items()]
    return [f"Selected with fewer clusters than k_max: {'; '.join(runs)}."] if runs else []


def shown(value: object) -> str:
    """Return the text of a setting. Digests are shortened.

    >>> shown(4), shown([1, 2]), shown(None), shown("learned")
    ('4', '[1, 2]', 'null', 'learned')
    """
    text = value if isinstance(value, str) else json.dumps(value)
    return text[: len("sha256:") + 12] if text.startswith("sha256:") else text


def _tex(text: str) -> str:
    r"""Escape plain text for LaTeX.

    >>> print(_tex("K_max: 5% ± -1.0"))
    K\_max: 5\% $\pm$ $-$1.0
    """
    text = re.sub(r"([&%$#_{}])", r"\\\1", text)
    text = re.sub(r"(?<![\w-])-(?=\d)", "$-$", text)
    for sign, command in {"±": r"$\pm$", "×": r"$\times$", "–": "--"}.items():
        text = text.replace(sign, command)
    return text


def write_table(figures: Mapping[str, Any], out: Path) -> list[Path]:
    """Write ``TABLE.md``, ``TABLE.tex`` and ``TABLE.json`` and return their paths.

    If the rows differ in one numeric setting, also draw the scores over it: ``TABLE.svg`` and ``TABLE.png``.
    """
    texts = {
        ".md": markdown(figures),
        ".tex": latex(figures),
        ".json": json.dumps(figures, indent=1, ensure_ascii=False) + "\n",
    }
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for suffix, text in texts.items():
        path = out / f"{figures['table']}{suffix}"
        write_atomically(path, lambda file, text=text: file.write_text(text))  # type: ignore[misc]
        paths.append(path)
    for suffix, content in figure_files(figures).items():
        path = out / f"{figures['table']}{suffix}"
        write_atomically(path, lambda file, content=content: file.write_bytes(content))  # type: ignore[misc]
        paths.append(path)
    return paths


def figure_files(figures: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the figure of a table by file suffix; empty if its rows do not differ in one numeric setting."""
    if figures["curves"] is None:
        return {}
    from divconq.analysis.drawing import draw
    from divconq.experiments.curves import curves_figure

    drawn = draw(lambda: curves_figure(figures))
    return {} if drawn is None else {".svg": drawn[0].encode(), ".png": drawn[1]}
