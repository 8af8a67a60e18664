import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name, *arguments):
    command = [sys.executable, EXAMPLES / name, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_own_loop_divides_and_learns():
    lines = run("own_loop.py", "--epochs", "4").splitlines()
    recalls = [float(re.search(r"R@1 ([\d.]+)", line)[1]) for line in lines]
    assert len(recalls) == 4
    assert recalls[-1] > 10, "an untrained network finds 7%"


def test_own_loop_needs_at_most_five_lines():
    text = (EXAMPLES / "own_loop.py").read_text()
    body = text.split('"""', 2)[2]
    assert set(re.findall(r"# \((\d)\)", body)) == {"1", "2", "3", "4", "5"}
    touched = [line for line in body.splitlines() if re.search(r"\bdc\b", line)]
    assert len(touched) == 5


def test_any_loss():
    lines = run("any_loss.py", "--epochs", "2").splitlines()
    assert [line.split(":")[0] for line in lines] == ["supervised_contrast", "MultiSimilarityLoss"]
    assert all("K 2" in line for line in lines)


def test_search_picture(photos, tiny, tmp_path):
    from PIL import Image

    from divconq.train import train

    train(tiny, tmp_path / "run")
    run(
        "search_picture.py", tmp_path / "run", "--data", photos, "--out", tmp_path / "x.png", "--queries", "3"
    )
    with Image.open(tmp_path / "x.png") as picture:
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 20)}
    assert (46, 158, 91) in colours or (214, 69, 65) in colours
