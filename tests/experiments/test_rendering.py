import dataclasses
import json

import pytest
from made_up_results import TABLE, result

from divconq.experiments.figures import find_runs, overrides_of, summary
from divconq.experiments.render import brief, latex, markdown, text, write_table
from divconq.experiments.table import parse_table

RUNS = [
    result("plain", 0, [60, 62, 61], [70, 60, 65]),
    result("plain", 1, [64, 62, 63], [60, 71, 70]),
    result("fixed", 0, [61, 64, 62], [60, 70, 61]),
    result("fixed", 1, [60, 66, 65], [60, 70, 80]),
    result("fixed", 2, [60, 66, 66], [60, 80, 70]),
]
MARKDOWN = """\
## Two rows, 50% made_up

|  | seeds | score | last epoch | over baseline | epoch selected on held-out classes | over baseline \
| best test epoch | over baseline | paper | training |
|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|
| plain training | 2 of 3 | R@1 | 62.00 ± 1.41 |  | 61.00 ± 1.41 |  | 63.00 ± 1.41 |  | 66.93 | 150 s |
|  |  | MAP@R | 31.00 ± 0.71 |  | 30.50 ± 0.71 |  | 31.50 ± 0.71 |  |  |  |
| fixed masks | 3 | R@1 | 64.33 ± 2.08 | +1.50 [-4.85, +7.85] (2 of 3 seeds) | 65.00 ± 1.00 \
| +3.50 [-2.85, +9.85] (2 of 3 seeds) | 65.33 ± 1.15 | +2.00 [+2.00, +2.00] (2 of 3 seeds) | 68.43 (+1.50) \
| 153 s (× 1.02) |
|  |  | MAP@R | 32.17 ± 1.04 | +0.75 [-2.43, +3.93] (2 of 3 seeds) | 32.50 ± 0.50 \
| +1.75 [-1.43, +4.93] (2 of 3 seeds) | 32.67 ± 0.58 | +1.00 [+1.00, +1.00] (2 of 3 seeds) |  |  |

Scores are in percent: mean ± sample standard deviation over the seeds. The columns over baseline have the mean \
difference to the baseline with the same seed and its 95% confidence interval (Student's t). The best test epoch is \
selected by R@1 on the test classes themselves, so it is too optimistic.
Held-out classes are training classes that are not trained on; MAP@R on them selects the epoch.
Not run yet: plain training: seed 2.
5 runs of 0123abc on a GPU, torch 2.9.
"""


def test_the_whole_markdown():
    assert markdown(summary(TABLE, RUNS, {})) == MARKDOWN


def test_in_brief():
    assert brief(summary(TABLE, RUNS, {})) == [
        "|  | seeds | R@1 | over baseline | MAP@R | over baseline | training |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
        "| plain training | 2 of 3 | 61.00 ± 1.41 |  | 30.50 ± 0.71 |  | 150 s |",
        "| fixed masks | 3 | 65.00 ± 1.00 | +3.50 [-2.85, +9.85] (2 of 3 seeds) | 32.50 ± 0.50 "
        "| +1.75 [-1.43, +4.93] (2 of 3 seeds) | 153 s (× 1.02) |",
    ]
    last = brief(summary(TABLE, [result("plain", 0, [60, 62, 61])], {}), metrics=["map@r"])
    assert last[2:] == ["| plain training | 1 of 3 | 30.50 |  | 150 s |"], "no line for what was not run"


def test_latex_has_the_same_cells_and_nothing_that_latex_takes_for_a_command():
    text = latex(summary(TABLE, RUNS, {}))
    assert r"\caption{Two rows, 50\% made\_up. Scores are in percent: mean $\pm$ sample" in text
    spread = r" $\pm$ 1.41 &  & "
    line = f"plain training & 2 of 3 & R@1 & 62.00{spread}61.00{spread}63.00{spread}66.93 & 150 s " + r"\\"
    assert line in text.splitlines()
    assert r"+1.50 [$-$4.85, +7.85] (2 of 3 seeds)" in text
    assert r"153 s ($\times$ 1.02) \\" in text
    columns = text[text.index("{tabular}{") + 10 :].partition("}")[0]
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(body) == 5
    assert all(line.count(" & ") + 1 == len(columns) for line in body)
    assert text.count("{") == text.count("}")


def test_numbers_by_hand():
    figures = summary(TABLE, RUNS, {})
    plain, fixed = figures["rows"]
    assert fixed["scores"]["recall@1"]["last"]["values"] == pytest.approx({0: 62, 1: 65, 2: 66})
    assert fixed["scores"]["recall@1"]["held_out"]["values"] == pytest.approx({0: 64, 1: 65, 2: 66})
    assert fixed["scores"]["recall@1"]["test"]["values"] == pytest.approx({0: 64, 1: 66, 2: 66})
    assert fixed["scores"]["map@r"]["test"]["values"] == pytest.approx({0: 32, 1: 33, 2: 33}), "epoch of R@1"
    assert fixed["epochs"] == {
        "last": {0: 3, 1: 3, 2: 3},
        "held_out": {0: 2, 1: 3, 2: 2},
        "test": {0: 2, 1: 2, 2: 2},
    }
    assert plain["missing"] == [2]
    assert fixed["runs"] == ["fixed-0", "fixed-1", "fixed-2"]


def test_without_held_out_classes_the_column_goes_and_epochs_not_evaluated_are_passed_over():
    runs = [result("plain", 0, [60, None, 59]), result("fixed", 0, [None, 62, 61])]
    figures = summary(TABLE, runs, {})
    assert figures["selections"] == ["last", "test"]
    assert figures["rows"][1]["scores"]["recall@1"]["held_out"] is None
    text = markdown(figures)
    assert "held-out" not in text.lower()
    assert "| fixed masks | 1 of 3 | R@1 | 61.00 | +2.00 | 62.00 | +2.00 |" in text, "one seed: no deviation"
    assert "Not run yet: plain training: seeds 1, 2; fixed masks: seeds 1, 2." in text


def test_a_row_that_was_never_run_is_shown():
    text = markdown(summary(TABLE, RUNS[:2], {}))
    assert "| fixed masks | 0 of 3 | R@1 | – | – | – | – | – | – | 68.43 (+1.50) | – |" in text
    empty = markdown(summary(TABLE, [], {}))
    assert "| plain training | 0 of 3 | R@1 | – |  | – |  | 66.93 | – |" in empty


def test_times_are_compared_only_on_the_same_hardware():
    runs = [result("plain", 0, [60]), result("fixed", 0, [61], hardware="another GPU")]
    assert summary(TABLE, runs, {})["rows"][1]["seconds"] == {"mean": 51.0, "over_baseline": None}
    assert len(summary(TABLE, runs, {})["origins"]) == 2


def test_of_two_results_of_one_run_the_older_counts():
    twice = [result("plain", 0, [60]), result("plain", 0, [99], date="2026-02-01T00:00:00+00:00")]
    assert find_runs(TABLE, twice, {})["plain"][0].metrics["recall@1"] == [0.6]


def test_overrides_are_read_off_the_results():
    def changed(row, **overrides):
        made = result(row, 0, [60])
        return result(row, 0, [60], settings={**made.settings, **overrides}, overrides=overrides)

    lr = [changed("plain", lr=0.5), changed("fixed", lr=0.5)]
    assert overrides_of(TABLE, [], {}) == {}
    assert overrides_of(TABLE, RUNS, {}) == {}
    assert overrides_of(TABLE, lr, {}) == {"lr": 0.5}
    assert overrides_of(TABLE, [*lr, *RUNS], {}) == {}, "as defined comes first"
    other = [*lr, changed("plain", lr=0.25, epochs=3)]
    with pytest.raises(ValueError, match=r'say which with --set: \{"lr": 0.5\}; \{"lr": 0.25, "epochs": 3\}'):
        overrides_of(TABLE, other, {})
    assert overrides_of(TABLE, other, {"epochs": 3}) == {"lr": 0.25, "epochs": 3}
    assert overrides_of(TABLE, [changed("plain", masks="learned")], {}) == {}, "rows differ in masks"
    assert "Set for all rows: lr 0.5." in markdown(summary(TABLE, lr, {"lr": 0.5}))
    assert summary(TABLE, lr, {})["rows"][0]["missing"] == [0, 1, 2]


def test_what_a_table_sets_for_all_rows_is_not_overridden_by_the_runs_of_another():
    table = dataclasses.replace(TABLE, common={"epochs": 7})
    own = result("plain", 0, [60], table=table, overrides={"epochs": 1})
    own.settings["epochs"] = 1
    others = dataclasses.replace(own, table="another")
    assert overrides_of(table, [own], {}) == {"epochs": 1}
    assert overrides_of(table, [others], {}) == {}
    assert overrides_of(table, [others], {"epochs": 1}) == {"epochs": 1}


def test_an_override_that_says_what_the_table_says_is_none():
    table = dataclasses.replace(TABLE, common={"epochs": 7})
    others = dataclasses.replace(
        result("plain", 0, [60], table=table, overrides={"epochs": 7, "lr": 0.5}), table="another"
    )
    others.settings["lr"] = 0.5
    assert overrides_of(table, [others], {}) == {"lr": 0.5}
    assert overrides_of(table, [others], {"epochs": 7}) == {"epochs": 7, "lr": 0.5}
    assert find_runs(table, [others], {"lr": 0.5})["plain"] == {0: others}


def test_three_files_are_written(tmp_path):
    figures = summary(TABLE, RUNS, {})
    paths = write_table(figures, tmp_path / "out")
    assert [path.name for path in paths] == ["made_up.md", "made_up.tex", "made_up.json"]
    assert paths[0].read_text() == MARKDOWN
    assert json.loads(paths[2].read_text()) == json.loads(json.dumps(figures))


def test_sections_have_titles_in_every_form():
    rows = tuple(dataclasses.replace(row, section=f"{row.title}, 5%") for row in TABLE.rows)
    figures = summary(dataclasses.replace(TABLE, rows=rows), RUNS, {})
    lines = markdown(figures).splitlines()
    assert lines[2] == "### plain training, 5%"
    assert lines.count(MARKDOWN.splitlines()[2]) == 2, "each section has a head"
    assert [line for line in lines if line[:5] == "| fix"] == [MARKDOWN.splitlines()[6]]
    assert text(figures).count("plain training, 5%\n\n") == 1
    columns = len(MARKDOWN.splitlines()[2].split(" | "))
    assert rf"\multicolumn{{{columns}}}{{l}}{{\emph{{fixed masks, 5\%}}}} \\" in latex(figures).splitlines()
    assert brief(figures, section="fixed") == brief(figures)[:2], "a section is named by its rows' prefix"


def test_scores_of_drawn_galleries_have_their_own_lines():
    text = """
title: T
preset: vehicleid
metrics: [recall@1, reid_recall@5]
rows: {a: {title: margin loss, paper: {reid_recall@5: 90.5}}}
"""
    table = parse_table("vehicles", text)
    run = result("a", 0, [60, 62], table=table)
    with_draws = dataclasses.replace(run, metrics={**run.metrics, "reid_recall@5": [0.8, 0.85]})
    figures = summary(table, [with_draws], {})
    lines = markdown(figures).splitlines()
    assert lines[4:6] == [
        "| margin loss | 1 | R@1 | 62.00 | 62.00 |  | 102 s |",
        "|  |  | reid R@5 | 85.00 | 85.00 | 90.50 |  |",
    ]
    assert r"reid R@5 & 85.00 & 85.00 & 90.50" in latex(figures)
    older = markdown(summary(table, [run], {})).splitlines()  # a result from before the score was logged
    assert older[5] == "|  |  | reid R@5 | – | – | 90.50 |  |"


NOTE = (
    "Selected with fewer clusters than k_max: fixed masks, seed 0 (on held-out classes epoch 2, K = 2 of 4; on test "
    "classes epoch 3, K = 2 of 4)."
)


def test_an_epoch_is_selected_at_the_largest_k_and_a_smaller_one_than_k_max_is_said():
    runs = [
        result("plain", 0, [60, 62, 61], [70, 60, 65], k=[1, 1, 1]),
        result("fixed", 0, [69, 61, 64], [80, 70, 65], k=[1, 2, 2]),
        result("fixed", 1, [69, 67, 64], [80, 70, 65], k=[2, 4, 4]),
    ]
    figures = summary(TABLE, runs, {})
    plain, fixed = figures["rows"]
    assert plain["epochs"] == {"last": {0: 3}, "held_out": {0: 1}, "test": {0: 2}}
    assert fixed["epochs"] == {"last": {0: 3, 1: 3}, "held_out": {0: 2, 1: 2}, "test": {0: 3, 1: 2}}
    assert fixed["scores"]["recall@1"]["test"]["values"] == pytest.approx({0: 64, 1: 67})
    assert plain["fewer_clusters"] == {"last": {}, "held_out": {}, "test": {}}
    assert fixed["fewer_clusters"]["held_out"] == {0: "K = 2 of 4"}
    assert NOTE in markdown(figures).splitlines()
    assert NOTE in " ".join(text(figures).split())
    assert "Selected with fewer" not in markdown(summary(TABLE, [runs[0], runs[2]], {}))


def test_results_of_old_versions_without_k_are_selected_by_the_score():
    old = [result("fixed", 0, [69, 61, 64], [80, 70, 65])]
    (_, fixed) = summary(TABLE, old, {})["rows"]
    assert fixed["epochs"] == {"last": {0: 3}, "held_out": {0: 1}, "test": {0: 1}}
    assert fixed["fewer_clusters"] == {"last": {}, "held_out": {}, "test": {}}
