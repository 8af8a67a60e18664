"""Writes the tables of CUB200-2011 from the results in benchmarks/cub/finished: a page each, and those inside pages.

    python benchmarks/result_tables.py

A page that has the two lines <!-- table NAME --> and <!-- end of table --> gets the short form of tables/NAME.yaml
between them. Tables of which nothing was run have no page.
"""

import re
from pathlib import Path

from divconq.reproduce import brief, load_table, markdown, read_results, summary
from divconq.reproduce.figures import overrides_of
from divconq.reproduce.results import Result

ROOT = Path(__file__).parent.parent
CUB = ROOT / "benchmarks" / "cub"
PAGES = (ROOT / "README.md", ROOT / "benchmarks" / "cub.md")
PLACE = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def written() -> dict[Path, str]:
    """Every page that has figures of these results, as it should be."""
    results = read_results(CUB / "finished")
    pages = {}
    for path in sorted((ROOT / "tables").glob("cub_*.yaml")):
        figures = figures_of(path, results)
        if any(row["files"] for row in figures["rows"]):
            pages[CUB / f"{path.stem}.md"] = markdown(figures)

    def filled(place: re.Match[str]) -> str:
        figures = figures_of(ROOT / "tables" / f"{place[2]}.yaml", results)
        lines = [*brief(figures, figures["metrics"][:2]), "", _origin(figures), ""]
        return place[1] + "\n".join(lines) + place[3]

    for page in PAGES:
        pages[page] = PLACE.sub(filled, page.read_text())
    return pages


def figures_of(path: Path, results: list[Result]) -> dict:
    """The figures of a table from these results."""
    table = load_table(path)
    return summary(table, results, overrides_of(table, results, {}))


def _origin(figures: dict) -> str:
    made = [f"{origin['runs']} by {origin['code']}" for origin in figures["origins"]]
    machines = {f"{origin['hardware']}, torch {origin['torch']}" for origin in figures["origins"]}
    return f"`tables/{figures['table']}.yaml`, runs: {', '.join(made)}; {'; '.join(sorted(machines))}."


if __name__ == "__main__":
    for page, text in written().items():
        if not page.exists() or page.read_text() != text:
            page.write_text(text)
            print(page.relative_to(ROOT))
