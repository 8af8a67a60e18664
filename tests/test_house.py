"""Rules of the house that no linter knows."""

import ast
from pathlib import Path

import divconq

SOURCE = Path(divconq.__file__).parent
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
