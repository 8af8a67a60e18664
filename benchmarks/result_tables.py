"""Write all tables of results into the pages: those of CUB200-2011, of the demo and of speed.

    python benchmarks/result_tables.py

Each table of CUB200-2011 that has results gets a page in benchmarks/cub, and a figure if its rows differ in one numeric
setting. In the other pages, the lines between
<!-- KIND WORDS --> and <!-- end of table --> are replaced:

    table NAME             the short form of tables/NAME.yaml
    table NAME:SECTION     one section of it
    late NAME ...          means over the last third of the epochs, of several tables
    frozen SPLIT SCORE     results of near_and_far.py
    frozen rates           the same at the best learning rates
    demo                   results of demo.py
    speed NAME             a function of speed_tables.py
    switch NAME            a function of switch_tables.py
"""

import re
from pathlib import Path
from statistics import mean

import demo
import near_and_far
import speed_tables
import switch_tables

from divconq.evaluation.scores import title
from divconq.experiments import brief, load_table, markdown, read_results, summary
from divconq.experiments.figures import find_runs, overrides_of
from divconq.experiments.render import fewer_clusters_note, figure_files
from divconq.experiments.results import Result
from divconq.experiments.statistics import paired_difference

ROOT = Path(__file__).parent.parent
BENCHMARKS, TABLES = ROOT / "benchmarks", ROOT / "tables"
CUB = BENCHMARKS / "cub"
PAGES = (ROOT / "README.md", *(BENCHMARKS / f"{name}.md" for name in ("cub", "demo", "speed", "switches")))
PLACE = re.compile(
    r"(<!-- (table|late|frozen|demo|speed|switch) ?([\w@: -]*?) -->\n).*?(<!-- end of table -->)", re.DOTALL
)
SCORES = ("recall@1", "map@r", "val_map@r")


def finished() -> list[Result]:
    """Return the results of all tables."""
    return [*read_results(CUB / "finished"), *read_results(BENCHMARKS / "finished")]


def written() -> dict[Path, str]:
    """Return the text of every page that has tables of results."""
    results = finished()
    pages = {}
    for path in sorted(TABLES.glob("cub_*.yaml")):
        figures = figures_of(path.stem, results)
        if any(row["runs"] for row in figures["rows"]):
            pages[CUB / f"{path.stem}.md"] = markdown(figures)

    def filled(place: re.Match[str]) -> str:
        return place[1] + "\n".join([*lines(place[2], place[3].split(), results), ""]) + place[4]

    for page in PAGES:
        pages[page] = PLACE.sub(filled, page.read_text())
    return pages


def drawn() -> dict[Path, bytes]:
    """Return every figure of results as SVG."""
    results = finished()
    names = [path.stem for path in sorted(TABLES.glob("cub_*.yaml"))]
    files = {name: figure_files(figures_of(name, results)) for name in names}
    return {CUB / f"{name}.svg": kinds[".svg"] for name, kinds in files.items() if kinds}


def lines(kind: str, words: list[str], results: list[Result]) -> list[str]:
    """Return the lines of one table."""
    if kind == "table":
        return short(words[0], results)
    if kind == "late":
        return late(words, results)
    if kind == "demo":
        return demo.table(speed_tables.read_lines("demo"))
    if kind == "speed":
        return speed_tables.TABLES[words[0]]()
    if kind == "switch":
        return switch_tables.TABLES[words[0]](results)
    _, *runs = speed_tables.read_lines("near_and_far")
    return near_and_far.selected_rates(runs) if words == ["rates"] else near_and_far.table(runs, *words)


def figures_of(name: str, results: list[Result]) -> dict:
    """Return the figures of a table from these results."""
    table = load_table(TABLES / f"{name}.yaml")
    return summary(table, results, overrides_of(table, results, {}))


def short(name: str, results: list[Result]) -> list[str]:
    """Return the short form of a table or of one of its sections, and where its runs were made."""
    name, _, section = name.partition(":")
    figures = figures_of(name, results)
    table = brief(figures, figures["metrics"][:2], section or None)
    if section:
        return table
    made = [f"{origin['runs']} by {origin['code']}" for origin in figures["origins"]]
    machines = {f"{origin['hardware']}, torch {origin['torch']}" for origin in figures["origins"]}
    about = f"`tables/{figures['table']}.yaml`, runs: {', '.join(made)}; {'; '.join(sorted(machines))}."
    return [*table, "", " ".join([about, *fewer_clusters_note(figures["rows"], ["held_out"])])]


def late(names: list[str], results: list[Result]) -> list[str]:
    """Return the rows that have a baseline, with the means of all evaluations in the last third of the epochs."""
    titles = [
        title(score.removeprefix("val_")) + (", held out" if "val_" in score else "") for score in SCORES
    ]
    head = "".join(f" {name} | over baseline |" for name in titles)
    lines = [f"| | table | seeds |{head}", "| --- | --- | --- |" + " ---: | ---: |" * len(SCORES)]
    for table in (load_table(TABLES / f"{name}.yaml") for name in names):
        runs = find_runs(table, results, overrides_of(table, results, {}))
        for row in table.rows:
            ours, theirs = runs[row.name], runs[row.baseline] if row.baseline else {}
            seeds = [seed for seed in ours if seed in theirs]
            if not seeds:
                continue
            cells = []
            for score in SCORES:
                values = [late_mean(ours[seed], score) for seed in seeds]
                gain = paired_difference(values, [late_mean(theirs[seed], score) for seed in seeds])
                interval = "" if gain.low is None else f" [{gain.low:+.2f}, {gain.high:+.2f}]"
                cells += [f"{mean(values):.2f}", f"{gain.mean:+.2f}{interval}"]
            lines.append(f"| {row.title} | {table.name} | {len(seeds)} | {' | '.join(cells)} |")
    return lines


def late_mean(result: Result, score: str) -> float:
    """Return the mean of a score in percent over the evaluations in the last third of the epochs."""
    values = result.metrics[score]
    return 100 * mean(value for value in values[len(values) * 2 // 3 :] if value is not None)


if __name__ == "__main__":
    for page, text in written().items():
        if not page.exists() or page.read_text() != text:
            page.write_text(text)
            print(page.relative_to(ROOT))
    for file, svg in drawn().items():
        if not file.exists() or file.read_bytes() != svg:
            file.write_bytes(svg)
            print(file.relative_to(ROOT))
