import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name, *arguments):
    command = [sys.executable, EXAMPLES / name, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_own_loop_divides_and_learns():
    lines = run("own_loop.py", "--epochs", "4").splitlines()
    assert [re.search(r"K (\d)", line)[1] for line in lines] == ["1", "1", "1", "2"]
    recalls = [float(re.search(r"R@1 ([\d.]+)", line)[1]) for line in lines]
    assert recalls[-1] > 5, "twice what chance gives"


def test_own_loop_needs_at_most_five_lines():
    text = (EXAMPLES / "own_loop.py").read_text()
    body = text.split('"""', 2)[2]
    assert set(re.findall(r"# \((\d)\)", body)) == {"1", "2", "3", "4", "5"}
    touched = [line for line in body.splitlines() if re.search(r"\bdc\b", line)]
    assert len(touched) == 5


@pytest.mark.parametrize("epochs", ["2"])
def test_any_loss(epochs):
    lines = run("any_loss.py", "--epochs", epochs).splitlines()
    assert [line.split(":")[0] for line in lines] == ["supervised_contrast", "MultiSimilarityLoss"]
    assert all("K 2" in line for line in lines)
