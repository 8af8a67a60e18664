"""The table "I want to add" of ARCHITECTURE.md is true: each row is followed in a copy of the package, and used."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import divconq

SOURCE = Path(divconq.__file__).parent
ARCHITECTURE = Path(__file__).parents[1] / "ARCHITECTURE.md"


@dataclass(frozen=True)
class Addition:
    """New files, lines after which a line is added, and a program that uses the result."""

    files: dict[str, str]
    lines: dict[str, list[tuple[str, str]]]
    use: str


ADDITIONS = {
    "a division strategy": Addition(
        files={
            "division/by_turns.py": """
from divconq.division.partition import Partition

def divide(x, partition, labels, *, k_max, seed, groups=None):
    import torch
    return Partition(torch.arange(len(labels)) % k_max, k_max)
"""
        },
        lines={
            "division/strategies.py": [
                ('"labels": Strategy(', '    "by_turns": Strategy("by_turns", at_once=True),')
            ]
        },
        use="""
import torch
from divconq import Config, DivideAndConquer
from divconq.cli import main
config = Config.of(division="by_turns")
labels = torch.arange(64) // 4 % 4
dc = DivideAndConquer(None, labels, dim=8, batch=4, division=config.division.strategy, divide_every=1)
assert dc.division_due(0)
dc.divide(None, epoch=0)
assert dc.partition.clusters.tolist() == [0, 1, 2, 3] * 16
try:
    main(["train", "--help"])
except SystemExit:
    pass
""",
    ),
    "a mask kind": Addition(
        files={
            "masks/halved.py": """
def split(parents, *, noise, seed):
    return parents.repeat_interleave(2, dim=0) / 2
"""
        },
        lines={"masks/kinds.py": [('"none": MaskKind(', '    "halved": MaskKind("halved"),')]},
        use="""
import torch
from divconq import Config, DivideAndConquer
kind = Config.of(masks="halved").masks.kind
dc = DivideAndConquer(None, torch.arange(64) % 4, dim=3, batch=4, masks=kind, division="random")
dc.divide(None, epoch=10)
assert dc.masks.active().tolist() == [[0.5] * 3] * 2
""",
    ),
    "a loss": Addition(
        files={
            "losses/spread.py": """
from torch import nn

class SpreadLoss(nn.Module):
    def __init__(self, scale: float = 1.0):
        super().__init__()
        self.scale = scale

    def forward(self, z, labels):
        return self.scale * z.mean(0).square().sum()
"""
        },
        lines={
            "losses/__init__.py": [
                ("from divconq.losses.soft_triplet", "from divconq.losses.spread import SpreadLoss"),
                ('"npairs": NPairsLoss', '    "spread": SpreadLoss,'),
            ]
        },
        use="""
import torch
from divconq import make_loss
loss = make_loss("spread", {"scale": 2.0}, num_classes=4, dim=2)
assert loss(torch.ones(2, 2), torch.tensor([0, 1])) == 4
""",
    ),
    "a dataset": Addition(
        files={
            "data/sources/grey.py": """
import torch
from divconq.data.dataset import Dataset, ImageSet, InMemory

def read_grey(root, *, size=256, workers=4):
    images = InMemory(torch.zeros(8, size, size, 3, dtype=torch.uint8))
    paths = tuple(f"{i}.png" for i in range(8))
    half = ImageSet(images, torch.arange(8) // 4, ("a", "b"), paths)
    return Dataset("grey", half, half)
"""
        },
        lines={
            "data/sources/registry.py": [
                (
                    "from divconq.data.sources.folder import",
                    "from divconq.data.sources.grey import read_grey",
                ),
                ('"cub": read_cub', '    "grey": read_grey,'),
            ]
        },
        use="""
from pathlib import Path
from divconq import Config
from divconq.training.datasets import open_data
data, _ = open_data(Config.of(data="grey", batch=4, k_max=2, ks=(1,), resize=32, image_size=24))
assert data.train.names == ("a", "b")
""",
    ),
    "a metric": Addition(
        files={},
        lines={
            "evaluation/scores.py": [
                ('"map@r": Metric(', '    "misses": Metric("misses", lambda r: (~r.hits[:, 0]).double()),')
            ],
        },
        use="""
import torch
from divconq.evaluation import evaluate
from divconq.evaluation.scores import is_score, title
x, labels = torch.tensor([[0.0], [1.0], [1.4], [9.0]]), torch.tensor([0, 0, 1, 1])
scores = evaluate(x, labels, ks=(1,))
assert scores["misses"] == 1 - scores["recall@1"] and 0 < scores["misses"] < 1, scores
assert is_score("val_misses") and title("val_misses") == "val misses"
import tempfile
from pathlib import Path
from divconq import Config
from divconq.analysis import analyse, write_report
from divconq.experiments.comparison import compare
from divconq.runs.folder import Run
with tempfile.TemporaryDirectory() as folder:
    run = Run.create(Path(folder, "run"), Config.of(data="nowhere", epochs=1))
    run.log({"epoch": 1, "k": 1, "loss": 1.0, **scores, "seconds": {"train": 1.0}})
    page = write_report(*analyse([run.folder], device="cpu"), Path(folder, "out")).read_text()
    assert compare([run.folder], ["misses"])["metrics"] == ["misses"]
assert ">misses<" in page
""",
    ),
    "a report chapter": Addition(
        files={
            "analysis/chapters/length.py": """
from dataclasses import dataclass
from pathlib import Path
from divconq.analysis.chapters.chapter import Chapter

@dataclass(frozen=True)
class Length:
    epochs: int

LENGTH = Chapter(
    name="length",
    title="Length of the run",
    template=Path(__file__).with_suffix(".html"),
    compute=lambda study: Length(study.records[0].config.optimisation.epochs),
)
""",
            "analysis/chapters/length.html": "<p>{{ length.epochs }} epochs</p>",
        },
        lines={
            "analysis/chapters/__init__.py": [
                (
                    "from divconq.analysis.chapters.errors",
                    "from divconq.analysis.chapters.length import LENGTH",
                ),
                ("CHAPTERS: list", "CHAPTERS.append(LENGTH)"),
            ]
        },
        use="""
import sys, tempfile
from pathlib import Path
from divconq import Config
from divconq.analysis import analyse, write_report
from divconq.runs.folder import Run
with tempfile.TemporaryDirectory() as folder:
    run = Run.create(Path(folder, "run"), Config.of(data="nowhere", epochs=7))
    page = write_report(*analyse([run.folder], device="cpu"), Path(folder, "out")).read_text()
assert "<p>7 epochs</p>" in page and "Length of the run" in page
""",
    ),
}


def rows() -> dict[str, list[str]]:
    """The paths that each row of the table names."""
    table = re.findall(r"^\| (a .*?) \| (.*?) \|$", ARCHITECTURE.read_text(), re.MULTILINE)
    return {name: [path for path in re.findall(r"`([^`]+)`", text) if "/" in path] for name, text in table}


def test_every_row_of_the_table_is_tried():
    assert set(ADDITIONS) | {"a setting"} == set(rows())


@pytest.mark.parametrize("name", ADDITIONS)
def test_the_files_of_the_row_are_enough(name, tmp_path):
    addition, named = ADDITIONS[name], rows()[name]
    package = tmp_path / "divconq"
    shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
    for path, text in addition.files.items():
        assert any(path.startswith(folder) for folder in named if folder.endswith("/")), (
            f"{path} is not named"
        )
        assert not (package / path).exists()
        (package / path).write_text(text)
    for path, lines in addition.lines.items():
        assert path in named, f"{path} is not named"
        content = (package / path).read_text().splitlines()
        for after, line in lines:
            (place,) = [i for i, existing in enumerate(content) if existing.strip().startswith(after)]
            content.insert(place + 1, line)
        (package / path).write_text("\n".join(content) + "\n")
    done = subprocess.run(
        [sys.executable, "-c", addition.use],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if name == "a division strategy":
        assert "by_turns" in done.stdout, "the help lists it"
