"""Every figure of CUB200-2011 in the pages is that of the result files."""

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("result_tables", ROOT / "benchmarks" / "result_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_what_the_results_say(tables: ModuleType) -> None:
    pages = tables.written()
    assert len(pages) > len(tables.PAGES)
    for page, text in pages.items():
        assert page.read_text() == text, f"run python benchmarks/result_tables.py: {page.name} is another"


def test_no_result_is_without_a_table(tables: ModuleType) -> None:
    results = tables.read_results(tables.CUB / "finished")
    paths = sorted((ROOT / "tables").glob("cub_*.yaml"))
    shown = {
        file for path in paths for row in tables.figures_of(path, results)["rows"] for file in row["files"]
    }
    assert {result.file for result in results} == shown


def test_a_place_in_a_page_is_filled(
    tables: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table cub_tuning_third -->\nold\n<!-- end of table -->\nafter\n")
    monkeypatch.setattr(tables, "PAGES", (page,))
    lines = tables.written()[page].splitlines()
    assert [lines[0], lines[1], lines[-2], lines[-1]] == [
        "before",
        "<!-- table cub_tuning_third -->",
        "<!-- end of table -->",
        "after",
    ]
    assert "old" not in lines
    assert lines[4].startswith("| margin loss | 2 | ")
    assert lines[-3].startswith("`tables/cub_tuning_third.yaml`, runs: ")


def test_the_last_third_of_the_epochs(tables: ModuleType) -> None:
    run = SimpleNamespace(metrics={"recall@1": [0.1, 0.2, None, 0.4, 0.5, None]})
    assert tables.late_mean(run, "recall@1") == 50.0
    margin = ROOT / "tables" / "cub_margin.yaml"
    lines = tables.late([margin], tables.read_results(tables.CUB / "finished"))
    assert [line.split(" | ")[:3] for line in lines[-2:]] == [
        ["| progressive, fixed masks", "cub_margin", "5"],
        ["| progressive, learned masks", "cub_margin", "5"],
    ]
