"""Every refusal of ``bad_input`` happens, in the words of ``docs/bad-input.md``; and no other is in the source."""

import ast
import tempfile
from functools import cache
from pathlib import Path

import pytest
from bad_input import GROUPS, PAGE, SOURCE, UNLISTED, happens, line, page

ROWS = [(group, refusal) for group, refusals in GROUPS.items() for refusal in refusals]


@cache
def outcome(row):
    with tempfile.TemporaryDirectory() as place:
        return happens(ROWS[row][1], Path(place).resolve())


def said(row):
    return line(ROWS[row][1], outcome(row).message)


@pytest.mark.parametrize(
    "row", range(len(ROWS)), ids=[f"{group}: {refusal.wrong}" for group, refusal in ROWS]
)
def test_it_is_refused_in_the_words_of_the_page(row):
    assert said(row) in PAGE.read_text().splitlines(), (
        "if the words are right, run: python tests/cli/bad_input.py"
    )


def test_the_page_has_nothing_else():
    lines = {group: [said(row) for row, (other, _) in enumerate(ROWS) if other == group] for group in GROUPS}
    assert PAGE.read_text() == page(lines), "run: python tests/cli/bad_input.py"


def raises():
    """File, function and lines of each statement that raises an error of its own."""

    def inside(node, file, function):
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, (ast.FunctionDef, ast.ClassDef))
            name = f"{function}.{child.name}".lstrip(".") if named else function
            if isinstance(child, ast.Raise) and child.exc is not None:
                yield file, name, range(child.lineno, child.end_lineno + 1)
            yield from inside(child, file, name)

    for path in sorted(SOURCE.rglob("*.py")):
        yield from inside(ast.parse(path.read_text()), path.relative_to(SOURCE).as_posix(), "")


def test_every_refusal_of_the_source_is_listed():
    raised = {place for row in range(len(ROWS)) for place in outcome(row).raised}
    silent = [
        (f"{file}: {function}", lines[0])
        for file, function, lines in raises()
        if not any((file, number) in raised for number in lines)
    ]
    unlisted = [f"{place}, line {first}" for place, first in silent if place not in UNLISTED]
    assert not unlisted, unlisted
    assert set(UNLISTED) == {place for place, _ in silent}, "these need not be left out any more"
