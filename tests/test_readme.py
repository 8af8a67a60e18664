import re
from pathlib import Path

import pytest
from PIL import Image

from divconq.config import Config
from divconq.train import train

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_every_example_runs(number, tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "runs/demo" in BLOCKS[number]:
        train(tiny.replace(epochs=1), tmp_path / "runs" / "demo")
        Image.new("RGB", (60, 40), "red").save("photo.jpg")
    exec(compile(BLOCKS[number], f"README example {number}", "exec"), {"__name__": "readme"})


def shown(default):
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, tuple):
        return " ".join(map(str, default))
    return "-" if default is None else str(default)


def test_every_switch_is_in_the_table_with_its_default():
    for name, default in Config().settings().items():
        if name in ("loss_args", "miner_args"):
            continue
        flag = "import" if name == "import_file" else name.replace("_", "-")
        row = re.search(rf"^\| `--{flag}` \| (.*?) \| .+ \|$", README, flags=re.MULTILINE)
        assert row, f"--{flag} is missing"
        assert row[1] == shown(default), flag


def test_files_that_are_named_exist():
    for name in re.findall(r"\]\(([\w./-]+)\)", README):
        assert (ROOT / name).exists(), name
