import re
import shutil
from pathlib import Path

import yaml

from divconq.experiments import parse_table

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "reproduce.md").read_text()


def test_the_program_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "tables", tmp_path / "tables")
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(block, "docs/reproduce.md", "exec"), {"__name__": "docs"})
    assert "Not run yet: margin loss: seeds 0, 1, 2, 3, 4" in capsys.readouterr().out
    assert (tmp_path / "results" / "cub_margin.tex").exists()


def test_the_example_of_a_table_is_one():
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    assert [row.name for row in parse_table("example", block).rows] == ["margin", "fixed"]
    defaults = parse_table("example", block.replace("metrics:", "# metrics:"))
    assert yaml.safe_load(block)["metrics"] == list(defaults.metrics)


def test_every_table_has_its_place_on_the_page():
    names = set(re.findall(r"`((?:cub|cars|sop|inshop|vehicleid|omniglot|demo)(?:_\w+)?)`", PAGE))
    assert names == {path.stem for path in (ROOT / "tables").glob("*.yaml")}
    for path in re.findall(r"tables/\w+\.yaml", PAGE):
        assert (ROOT / path).exists(), path
