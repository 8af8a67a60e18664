"""The figures of a table as text, Markdown, LaTeX and JSON; what was not run is said to be missing."""

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


def text(figures: Mapping[str, Any]) -> str:
    """The table for a terminal."""
    head, lines = _cells(figures)
    notes = [line for note in _notes(figures) for line in textwrap.wrap(note, 100)]
    return "\n".join([*aligned([head, *lines], left=3), "", *notes]) + "\n"


def markdown(figures: Mapping[str, Any]) -> str:
    """The table in Markdown, with what one has to know to read it."""
    head, lines = _cells(figures)
    rows = [
        f"## {figures['title']}",
        "",
        _markdown_line(head),
        "|---|---|---|" + "---:|" * (len(head) - 3),
    ]
    rows += map(_markdown_line, lines)
    return "\n".join([*rows, "", *_notes(figures)]) + "\n"


def brief(figures: Mapping[str, Any], metrics: Sequence[str] = ("recall@1", "map@r")) -> list[str]:
    """The table in Markdown, a line a row, of one epoch: that chosen on held-out classes, or the last without any.

    Rows that were not run are left out.
    """
    selection = "held_out" if "held_out" in figures["selections"] else "last"
    head = ["", "seeds"]
    for metric in metrics:
        head += [title(metric), "over baseline"]
    lines = [[*head, "training"], ["---", "---"] + ["---:"] * (2 * len(metrics) + 1)]
    for row in figures["rows"]:
        if not row["files"]:
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
    """The table in LaTeX; it needs the package booktabs."""
    head, lines = _cells(figures)
    body: list[str] = []
    for line in lines:
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


def _cells(figures: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The head and the lines: for each row a line a metric, so that all of them stand below each other."""
    selections, rows = figures["selections"], figures["rows"]
    compared = any(row["baseline"] for row in rows)
    head = ["", "seeds", "score"]
    for selection in selections:
        head += [SELECTIONS[selection]] + (["over baseline"] if compared else [])
    head += (["paper"] if any(row["paper"] for row in rows) else []) + ["training"]
    papers = {row["row"]: row["paper"] for row in rows}
    lines = []
    for row in rows:
        for number, metric in enumerate(figures["metrics"]):
            first = number == 0
            line = [row["title"] if first else "", _seeds(row) if first else "", title(metric)]
            for selection in selections:
                score = row["scores"][metric][selection]
                line.append(_spread(score))
                if compared:
                    line.append(_difference(row, score))
            if "paper" in head:
                line.append(_paper(metric, row["paper"], papers.get(row["baseline"], {})))
            lines.append([*line, _training(row) if first else ""])
    return head, lines


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
        "In percent: mean ± sample standard deviation over the seeds; over baseline: the mean difference to the "
        "baseline with the same seed, and its 95% interval (Student's t). The last epoch needs no choice; the best "
        "test epoch is chosen by R@1 on the test classes themselves and flatters."
    ]
    if "held_out" in figures["selections"]:
        notes.append("Held-out classes are training classes that were not trained on; MAP@R on them chose.")
    if figures["overrides"]:
        changed = ", ".join(f"{name} {shown(value)}" for name, value in figures["overrides"].items())
        notes.append(f"Set for all rows: {changed}.")
    missing = [
        f"{row['title']}: seed{'s' if len(row['missing']) > 1 else ''} {', '.join(map(str, row['missing']))}"
        for row in figures["rows"]
        if row["missing"]
    ]
    if missing:
        notes.append(f"Not run yet: {'; '.join(missing)}.")
    origins = [
        f"{origin['runs']} runs by {origin['code']} on {origin['hardware']}, torch {origin['torch']}"
        for origin in figures["origins"]
    ]
    if origins:
        notes.append(f"{'; '.join(origins)}.")
    return notes


def shown(value: object) -> str:
    """A setting as it is printed.

    >>> shown(4), shown([1, 2]), shown(None), shown("learned")
    ('4', '[1, 2]', 'null', 'learned')
    """
    text = value if isinstance(value, str) else json.dumps(value)
    return text[: len("sha256:") + 12] if text.startswith("sha256:") else text


def _tex(text: str) -> str:
    r"""Plain text for LaTeX.

    >>> print(_tex("K_max: 5% ± -1.0"))
    K\_max: 5\% $\pm$ $-$1.0
    """
    text = re.sub(r"([&%$#_{}])", r"\\\1", text)
    text = re.sub(r"(?<![\w-])-(?=\d)", "$-$", text)
    for sign, command in {"±": r"$\pm$", "×": r"$\times$", "–": "--"}.items():
        text = text.replace(sign, command)
    return text


def write_table(figures: Mapping[str, Any], out: Path) -> list[Path]:
    """Write ``TABLE.md``, ``TABLE.tex`` and ``TABLE.json``."""
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
    return paths
