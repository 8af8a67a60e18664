"""A new chapter needs one module with its template, and one entry in CHAPTERS."""

import json
import runpy

import pytest

from analysis.made_runs import SETTINGS
from divconq.analysis import analyse, write_report
from divconq.analysis.chapters import CHAPTERS
from divconq.runs.folder import Run

MODULE = """
from dataclasses import dataclass
from pathlib import Path

from divconq.analysis.chapters.chapter import Chapter, Plot
from divconq.analysis.drawing import bars


@dataclass(frozen=True)
class Length:
    epochs: int


def compute(study):
    return Length(study.records[0].config.optimisation.epochs)


LENGTH = Chapter(
    name="length",
    title="Length",
    template=Path(__file__).with_suffix(".html"),
    compute=compute,
    summary=lambda length: [f"The run has {length.epochs} <epochs>."],
    plots={"epochs": Plot("Epochs of the run.", lambda length: bars([length.epochs], "Epochs", xlabel="run"))},
)
"""
TEMPLATE = """
{% from "macros.html" import figure_row, note %}
<p>{{ length.epochs | count("epoch") }} of {{ "<b>" }}</p>
{{ figure_row(["epochs"]) }}
{% call note("Length", "Not in the paper") %}The number of epochs.{% endcall %}
"""


@pytest.fixture
def new_chapter(tmp_path):
    (tmp_path / "length.py").write_text(MODULE)
    (tmp_path / "length.html").write_text(TEMPLATE)
    CHAPTERS.append(runpy.run_path(str(tmp_path / "length.py"))["LENGTH"])
    yield
    CHAPTERS.pop()


def test_a_new_chapter_is_in_all_parts_of_the_report(new_chapter, photos, tmp_path):
    run = Run.create(tmp_path / "run", SETTINGS.replace(data=str(photos)))
    html = write_report(*analyse([run.folder], device="cpu"), tmp_path / "out").read_text()
    assert json.loads((tmp_path / "out" / "analysis.json").read_text())["length"] == {"epochs": 3}
    assert (tmp_path / "out" / "figures" / "epochs.png").is_file()
    assert '<section id="length"><h2>Length</h2>' in html
    assert '<a href="#length">Length</a>' in html
    assert "<p>3 epochs of &lt;b&gt;</p>" in html
    assert '<figure id="epochs">' in html
    assert "<dt>Length</dt><dd>The run has 3 &lt;epochs&gt;.</dd>" in html
