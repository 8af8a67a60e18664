"""The pages agree with the results: tables are generated, and figures in the prose are found in tables."""

import importlib
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).parent.parent.parent
BLOCK = re.compile(r"<!-- (?:table|late|frozen|demo|speed|switch).*?<!-- end of table -->", re.DOTALL)
DECIMAL = re.compile(r"(?<![\w.,])[+-]?\d+\.\d\d(?![\w.%])")


@pytest.fixture(scope="module")
def tables() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield importlib.import_module("result_tables")
    sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture(scope="module")
def written(tables: ModuleType) -> dict[Path, str]:
    return tables.written()


def test_the_pages_are_what_the_results_say(tables: ModuleType, written: dict[Path, str]) -> None:
    assert len(written) > len(tables.PAGES)
    for page, text in written.items():
        assert page.read_text() == text, f"{page.name} is out of date: run python benchmarks/result_tables.py"
    assert {path.name for path in tables.CUB.glob("*.md")} == {
        page.name for page in written if page.parent == tables.CUB
    }


def texts(svg: bytes) -> list[str]:
    return [
        "".join(text.itertext())
        for text in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    ]


def test_the_figures_are_what_the_results_say(tables: ModuleType) -> None:
    """Only their words and lines are compared: another version of matplotlib may place them elsewhere."""
    drawn = tables.drawn()
    assert {path.name for path in tables.CUB.glob("*.svg")} == {file.name for file in drawn}
    for file, svg in drawn.items():
        assert f"](cub/{file.name})" in (ROOT / "benchmarks" / "cub.md").read_text()
        stored = file.read_bytes()
        assert {*texts(svg)} == {*texts(stored)}, (
            f"{file.name} is out of date: run benchmarks/result_tables.py"
        )
        assert svg.count(b"<use") == stored.count(b"<use")


def test_no_result_is_without_a_table(tables: ModuleType) -> None:
    results = tables.read_results(tables.CUB / "finished")
    names = [path.stem for path in (ROOT / "tables").glob("cub_*.yaml")]
    shown = {run for name in names for row in tables.figures_of(name, results)["rows"] for run in row["runs"]}
    assert {result.name for result in results} == shown
    assert {path.stem for path in (tables.CUB / "finished").iterdir()} <= set(names)


def test_every_speed_table_is_on_a_page(tables: ModuleType) -> None:
    pages = "".join(page.read_text() for page in tables.PAGES)
    for name in tables.speed_tables.TABLES:
        assert f"<!-- speed {name} -->" in pages, name
    for line in sorted((ROOT / "benchmarks" / "results").iterdir()):
        assert f"(results/{line.name})" in pages, f"no page names {line.name}"


@pytest.mark.parametrize("page", sorted((ROOT / "benchmarks").glob("*.md")), ids=lambda page: page.stem)
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\(([\w./]+)(?:#[\w-]*)?\)", text):
        assert (page.parent / link).exists(), link
    for name in re.findall(r"(?:benchmarks|tables)/\w+\.(?:py|yaml)", text.replace("tables/TABLE.yaml", "")):
        assert (ROOT / name).exists(), name


# Figures in the prose of cub.md that no table of the same section shows: the gain of fixed masks at the epochs
# selected by R@1 on held-out classes, and the score in the authors' repository.
NOT_IN_A_TABLE = {"-0.93", "+2.52", "67.39"}


def test_figures_in_the_prose_are_found_in_the_tables(tables: ModuleType, written: dict[Path, str]) -> None:
    unknown, count = set(), 0
    for section in written[ROOT / "benchmarks" / "cub.md"].split("\n## "):
        linked = [written[tables.CUB / f"{name}.md"] for name in re.findall(r"\(cub/(\w+)\.md\)", section)]
        shown = " ".join([*BLOCK.findall(section), *linked])
        known = {figure.lstrip("+-") for figure in DECIMAL.findall(shown)}
        figures = DECIMAL.findall(BLOCK.sub("", section))
        unknown |= {figure for figure in figures if figure.lstrip("+-") not in known}
        count += len(figures)
    assert count > 40
    assert unknown == NOT_IN_A_TABLE


def test_figures_in_the_prose_of_speed_are_found_in_the_tables(written: dict[Path, str]) -> None:
    page = ROOT / "benchmarks" / "speed.md"
    known = "".join(BLOCK.findall(written[page]))
    prose = " ".join(BLOCK.sub("", page.read_text()).split())
    rates = set(
        re.findall(r"(?<![\d,])\d,\d{3}(?= images/s| images per second| and \(b\)| and 8,| without)", prose)
    )
    assert rates == {"8,523", "7,593", "8,812", "8,485", "8,773"}
    assert all(rate in known for rate in rates)


def test_a_place_in_a_page_is_filled(
    tables: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- table cub_e -->\nold\n<!-- end of table -->\nafter\n<!-- table cub_tuning:pairs -->\n"
    )
    monkeypatch.setattr(tables, "PAGES", (page,))
    lines = tables.written()[page].splitlines()
    assert [lines[0], lines[1], *lines[-3:]] == [
        "before",
        "<!-- table cub_e -->",
        "<!-- end of table -->",
        "after",
        "<!-- table cub_tuning:pairs -->",
    ]
    assert "old" not in lines
    assert lines[4].startswith("| margin loss | 1 | ")
    assert lines[-4].startswith("`tables/cub_e.yaml`, runs: ")


def test_one_section_of_a_table(tables: ModuleType) -> None:
    pairs = tables.short("cub_tuning:pairs", tables.read_results(tables.CUB / "finished"))
    assert pairs[2].startswith("| margin loss | 2 | 88.62 ± 1.94 |")
    assert len(pairs) == 2 + 11


def test_the_last_third_of_the_epochs(tables: ModuleType) -> None:
    run = SimpleNamespace(metrics={"recall@1": [0.1, 0.2, None, 0.4, 0.5, None]})
    assert tables.late_mean(run, "recall@1") == 50.0
    lines = tables.late(["cub_margin"], tables.read_results(tables.CUB / "finished"))
    assert [line.split(" | ")[:3] for line in lines[-2:]] == [
        ["| progressive, fixed masks", "cub_margin", "5"],
        ["| progressive, learned masks", "cub_margin", "3"],
    ]
