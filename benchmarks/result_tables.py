"""Writes the tables of CUB200-2011 from the results in benchmarks/cub/finished: a page each, and those inside pages.

    python benchmarks/result_tables.py

A page that has the two lines <!-- table NAME --> and <!-- end of table --> gets the short form of tables/NAME.yaml
between them; with <!-- late NAME NAME --> the mean of the last third of the epochs, of several tables. Tables of which
nothing was run have no page.
"""

import re
from pathlib import Path
from statistics import mean

from divconq.experiments import brief, load_table, markdown, read_results, summary
from divconq.experiments.figures import find_runs, overrides_of
from divconq.experiments.results import Result
from divconq.experiments.statistics import paired_difference

ROOT = Path(__file__).parent.parent
CUB = ROOT / "benchmarks" / "cub"
PAGES = (ROOT / "README.md", ROOT / "benchmarks" / "cub.md")
PLACE = re.compile(r"(<!-- (table|late) ([\w ]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
SCORES = {"recall@1": "R@1", "map@r": "MAP@R", "val_map@r": "MAP@R, held out"}


def written() -> dict[Path, str]:
    """Every page that has figures of these results, as it should be."""
    results = read_results(CUB / "finished")
    pages = {}
    for path in sorted((ROOT / "tables").glob("cub_*.yaml")):
        figures = figures_of(path, results)
        if any(row["files"] for row in figures["rows"]):
            pages[CUB / f"{path.stem}.md"] = markdown(figures)

    def filled(place: re.Match[str]) -> str:
        paths = [ROOT / "tables" / f"{name}.yaml" for name in place[3].split()]
        lines = late(paths, results) if place[2] == "late" else short(paths[0], results)
        return place[1] + "\n".join([*lines, ""]) + place[4]

    for page in PAGES:
        pages[page] = PLACE.sub(filled, page.read_text())
    return pages


def figures_of(path: Path, results: list[Result]) -> dict:
    """The figures of a table from these results."""
    table = load_table(path)
    return summary(table, results, overrides_of(table, results, {}))


def short(path: Path, results: list[Result]) -> list[str]:
    """A table, a line a row, and where its runs were made."""
    figures = figures_of(path, results)
    made = [f"{origin['runs']} by {origin['code']}" for origin in figures["origins"]]
    machines = {f"{origin['hardware']}, torch {origin['torch']}" for origin in figures["origins"]}
    about = f"`tables/{figures['table']}.yaml`, runs: {', '.join(made)}; {'; '.join(sorted(machines))}."
    return [*brief(figures, figures["metrics"][:2]), "", about]


def late(paths: list[Path], results: list[Result]) -> list[str]:
    """Rows with a baseline: the mean of all evaluations in the last third of the epochs."""
    head = "".join(f" {title} | over baseline |" for title in SCORES.values())
    lines = [f"| | table | seeds |{head}", "| --- | --- | --- |" + " ---: | ---: |" * len(SCORES)]
    for table in map(load_table, paths):
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
    """The mean of a score in percent over the evaluations in the last third of the epochs."""
    values = result.metrics[score]
    return 100 * mean(value for value in values[len(values) * 2 // 3 :] if value is not None)


if __name__ == "__main__":
    for page, text in written().items():
        if not page.exists() or page.read_text() != text:
            page.write_text(text)
            print(page.relative_to(ROOT))
