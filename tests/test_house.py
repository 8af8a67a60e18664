"""Rules of the house that no linter knows."""

import ast
import re
import tomllib
from pathlib import Path

import divconq

SOURCE = Path(divconq.__file__).parent
ROOT = Path(__file__).parents[1]
FILES = [path for path in SOURCE.rglob("*.py") if path.stem != "__init__"]


def test_modules_do_not_share_their_name_with_something_in_them():
    shared = []
    for path in FILES:
        names = {
            node.name
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
        }
        if path.stem in names:
            shared.append(path.relative_to(SOURCE).as_posix())
    assert shared == ["train.py"], "train.py holds the loop, the function train"


def test_files_are_named_for_their_content():
    assert not {"utils", "common", "helpers", "misc"} & {path.stem for path in FILES}


def test_every_dependency_has_a_lower_bound():
    """`make test-oldest` installs these versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *(line for lines in extras.values() for line in lines)]
    assert len(needed) > 20
    assert [line for line in needed if not re.fullmatch(r"[\w-]+>=[\d.]+", line)] == []
    assert {line for name in ("pml", "parquet", "umap", "tensorboard", "clml") for line in extras[name]} <= {
        *extras["dev"]
    }


def test_no_module_needs_pytorch_metric_learning_to_be_imported():
    """It is an extra. Only the losses by name and the comparisons of `divconq bench` import it, inside functions."""
    imports = {
        (path.relative_to(SOURCE).as_posix(), node in tree.body)
        for path in FILES
        for tree in [ast.parse(path.read_text())]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom) and "pytorch_metric_learning" in ast.unparse(node)
    }
    assert imports == {("losses/external.py", False), ("bench/algorithms.py", False)}
