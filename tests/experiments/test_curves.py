"""The figure of a table whose rows differ in one numeric setting."""

import dataclasses
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from made_up_results import TABLE, result

from divconq.analysis.drawing import PAPER, SETTINGS
from divconq.cli import main
from divconq.experiments import load_table
from divconq.experiments.curves import curves_figure
from divconq.experiments.figures import summary
from divconq.experiments.numeric_setting import curves_of
from divconq.experiments.render import write_table
from divconq.experiments.results import append_result
from divconq.experiments.table import parse_table

TABLES = Path(__file__).parents[2] / "tables"
SIZES = parse_table(
    "sizes",
    """
title: Sizes
preset: demo
seeds: [0, 1]
metrics: [recall@1, map@r, nmi]
rows:
  d64: {title: "d = 64, plain", flags: {dim: 64, k_max: 1, masks: none}, paper: {recall@1: 60}}
  d64-fixed: {title: "d = 64, ours", flags: {dim: 64, masks: fixed}, baseline: d64}
  d512: {title: "d = 512, plain", flags: {dim: 512, k_max: 1, masks: none}}
  d512-fixed: {title: "d = 512, ours", flags: {dim: 512, masks: fixed}, baseline: d512}
  d128: {title: "d = 128, plain", flags: {dim: 128, k_max: 1, masks: none}, paper: {recall@1: 62}}
  d128-fixed: {title: "d = 128, ours", flags: {dim: 128, masks: fixed}, baseline: d128}
""",
)
RUNS = [
    result(row, seed, [50 + place + 2 * seed, 60 + 3 * place + 2 * seed], table=SIZES)
    for place, row in enumerate(("d64", "d128", "d512", "d64-fixed", "d128-fixed", "d512-fixed"))
    for seed in (0, 1)
]


def figure_of(table, runs):
    with matplotlib.rc_context(SETTINGS):
        return curves_figure(summary(table, runs, {}))


def shown(figure):
    """The names in the legend."""
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def lines_of(axes):
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]


def test_lines_points_and_bands_are_means_and_deviations():
    figure = figure_of(SIZES, RUNS)
    recall, map_at_r = figure.axes
    plain, paper, ours = lines_of(recall)
    assert plain == ([64, 128, 512], pytest.approx([61, 64, 67]))
    assert ours == ([64, 128, 512], pytest.approx([70, 73, 76]))
    assert paper == ([64, 128], [60, 62])
    assert [line for line, _ in lines_of(map_at_r)] == [[64, 128, 512]] * 2
    band = recall.collections[0].get_paths()[0].vertices
    low, high = band[band[:, 0] == 64][:, 1].min(), band[band[:, 0] == 64][:, 1].max()
    assert (low, high) == pytest.approx((61 - np.std([60, 62], ddof=1), 61 + np.std([60, 62], ddof=1)))
    assert shown(figure) == ["plain", "the paper", "ours"]
    assert recall.get_xscale() == "log"
    assert [label.get_text() for label in recall.get_xticklabels()] == ["64", "128", "512"]
    assert [axes.get_title("left") for axes in figure.axes] == ["R@1, %", "MAP@R, %"]
    assert figure.get_suptitle() == "Sizes: last epoch, 2 seeds"
    assert recall.get_xlabel() == "dimensions of the embedding, d"


def test_one_seed_missing_seeds_and_missing_rows():
    figure = figure_of(SIZES, RUNS[:1])
    assert lines_of(figure.axes[0])[0] == ([64], pytest.approx([60]))
    assert figure.get_suptitle().endswith(", 1 seed")
    some = [run for run in RUNS if run.row != "d128" and (run.row, run.seed) != ("d512", 1)]
    figure = figure_of(SIZES, some)
    assert lines_of(figure.axes[0])[0] == ([64, 512], pytest.approx([61, 66]))
    assert figure.get_suptitle().endswith(", 1 to 2 seeds")
    assert figure_of(SIZES, []) is None


def test_scores_that_old_results_lack_leave_no_line():
    old = [
        dataclasses.replace(
            run, metrics={name: run.metrics[name] for name in ("epoch", "recall@1", "seconds_train")}
        )
        for run in RUNS
    ]
    recall, map_at_r = figure_of(SIZES, old).axes
    assert len(recall.lines) == 3
    assert not map_at_r.lines


def test_noise_does_not_fill_the_figure():
    figure = figure_of(
        SIZES, [result(run.row, 0, [60, 60 + 0.1 * len(run.row)], table=SIZES) for run in RUNS]
    )
    low, high = figure.axes[1].get_ylim()
    assert high - low >= 4


def test_a_run_without_division_is_the_first_point_over_k_max():
    table = load_table(TABLES / "sop_k.yaml")
    (line,) = summary(table, [], {})["curves"]["lines"]
    assert line["rows"] == {"k1": 1, "k2": 2, "k4": 4, "k8": 8, "k16": 16, "k32": 32, "k64": 64}
    runs = [result(row.name, 0, [70 + place], table=table) for place, row in enumerate(table.rows)]
    figure = figure_of(table, runs)
    ours, paper = lines_of(figure.axes[0])
    assert ours == ([1, 2, 4, 8, 16, 32, 64], pytest.approx([70, 71, 72, 73, 74, 75, 76]))
    assert paper[1] == [77.11, 78.25, 78.71, 79.19, 79.28, 79.54, 79.51]


def test_a_run_without_division_is_a_horizontal_line_over_e():
    table = load_table(TABLES / "cub_e.yaml")
    curves = summary(table, [], {})["curves"]
    assert (curves["setting"], [line["level"] for line in curves["lines"]]) == ("divide_every", [False, True])
    runs = [result(row.name, 0, [70 + place], table=table) for place, row in enumerate(table.rows)]
    figure = figure_of(table, runs)
    assert lines_of(figure.axes[0])[0][0] == [1, 2, 5, 10, 20]
    assert lines_of(figure.axes[0])[1][1] == pytest.approx([70, 70])
    assert shown(figure) == ["with division", "margin loss"]


def test_tables_with_and_without_a_figure():
    """A few of the tables of the paper, and no other one, have a numeric setting."""
    found = {path.stem: summary(load_table(path), [], {})["curves"] for path in sorted(TABLES.glob("*.yaml"))}
    assert {name: curves["setting"] for name, curves in found.items() if curves is not None} == {
        "cub_dim": "dim",
        "cub_e": "divide_every",
        "cub_k": "k_max",
        "demo_margin": "beta",
        "sop_dim": "dim",
        "sop_e": "divide_every",
        "sop_k": "k_max",
    }


@pytest.mark.parametrize(
    ("rows", "lines"),
    [
        ([{"lr": 1}, {"lr": 2}], None),  # two values
        ([{"lr": 1}, {"lr": 2}, {"lr": 3}], [[1, 2, 3]]),
        ([{"lr": 1}, {"lr": 2}, {"lr": 3}, {"lr": 3, "loss": "triplet"}], None),  # a row alone
        ([{"lr": 1}, {"lr": 2}, {"lr": None}], None),
        ([{"nmi": True}, {"nmi": False}], None),
        ([{"lr": v, "batch": b} for b in (10, 20) for v in (1, 2, 3)], [[1, 2, 3], [1, 2, 3]]),
        (
            [{"lr": v, "batch": b} for b in range(9) for v in (1, 2, 3)],
            None,
        ),  # too many lines over lr; 9 over batch
    ],
)
def test_settings_found(rows, lines):
    every = {str(place): {"lr": 5, "loss": "margin", "batch": 1, **row} for place, row in enumerate(rows)}
    curves = curves_of(every, {name: name for name in every})
    if rows[-1] == {"lr": 3, "batch": 8}:
        assert (curves["setting"], len(curves["lines"])) == ("batch", 3)
    else:
        assert (curves and [list(line["rows"].values()) for line in curves["lines"]]) == lines


def test_the_files_are_written_and_rendered_again(tmp_path, capsys):
    paths = write_table(summary(SIZES, RUNS, {}), tmp_path / "out")
    assert [path.name for path in paths] == ["sizes.md", "sizes.tex", "sizes.json", "sizes.svg", "sizes.png"]
    texts = ["".join(text.itertext()) for text in ET.parse(paths[3]).iter("{http://www.w3.org/2000/svg}text")]
    assert {"plain", "ours", "R@1, %", "64", "128", "512"} <= set(texts)
    assert paths[4].read_bytes().startswith(b"\x89PNG")
    assert json.loads(paths[2].read_text())["curves"]["setting"] == "dim"
    assert len(write_table(summary(TABLE, [result("plain", 0, [60])], {}), tmp_path)) == 3, (
        "no numeric setting"
    )
    assert len(write_table(summary(SIZES, [], {}), tmp_path)) == 3, "no results"

    table = load_table(TABLES / "cub_k.yaml")
    append_result(tmp_path / "again" / "finished" / "cub_k.jsonl", result("k4", 0, [60], table=table))
    main(["reproduce", str(TABLES / "cub_k.yaml"), "--out", str(tmp_path / "again"), "--render-only"])
    assert (tmp_path / "again" / "cub_k.svg").stat().st_size > 1000
    assert (tmp_path / "again" / "cub_k.png").read_bytes()[:4] == b"\x89PNG"


def test_points_with_fewer_clusters_than_k_max_are_hollow():
    table = load_table(TABLES / "cub_e.yaml")
    ks = {"e20": [1, 2], "margin": [1, 1]}
    runs = [
        result(row.name, 0, [70, 71], [70, 71], table=table, k=ks.get(row.name, [2, 4])) for row in table.rows
    ]
    figure = figure_of(table, runs)
    hollow = figure.axes[0].lines[1]
    assert (list(hollow.get_xdata()), hollow.get_markerfacecolor()) == ([20], PAPER)
    assert shown(figure) == ["with division", "fewer clusters than k_max", "margin loss"]
