import dataclasses
from pathlib import Path

import pytest

from divconq.config import Config
from divconq.division.schedule import k_reached
from divconq.experiments.flags import parse_changes
from divconq.experiments.settings import KINDS
from divconq.experiments.table import load_table, parse_table
from divconq.io.yaml_values import convert
from divconq.presets import preset

TABLES = Path(__file__).parent.parent.parent / "tables"
GOOD = """
title: A table
preset: cub
common: {lr: 1e-4, val_classes: 5}
baseline: margin
seeds: [0, 1, 2]
rows:
  margin:
    flags: {k_max: 1, masks: none}
    paper: {recall@1: 66.93}
  triplet:
    title: triplet loss
    flags: {loss: triplet, loss_args: {alpha: 0.1}, ks: [1, 10]}
    seeds: [7]
"""


def test_rows_are_a_preset_with_common_flags_and_their_own():
    table = parse_table("t", GOOD)
    margin, triplet = table.rows
    assert table.config(margin, 2) == preset("cub").replace(
        lr=1e-4, val_classes=5, k_max=1, masks="none", seed=2
    )
    expected = preset("cub").replace(
        lr=1e-4, val_classes=5, loss="triplet", loss_args={"alpha": 0.1}, ks=(1, 10), seed=7
    )
    assert table.config(triplet, 7) == expected
    assert (margin.baseline, triplet.baseline, triplet.title) == (None, "margin", "triplet loss")
    assert [(row.name, seed) for row, seed in table.runs()] == [
        ("margin", 0), ("triplet", 7), ("margin", 1), ("margin", 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("common:", "comon:", "t: unknown key 'comon'.*did you mean 'common'"),
        ("    seeds: [7]", "    seed: [7]", "t, row triplet: unknown key 'seed'.*did you mean 'seeds'"),
        ("k_max: 1", "kmax: 1", "t, row margin: flags: unknown flag 'kmax'; did you mean 'k_max'"),
        (
            "masks: none",
            "masks: nine",
            "masks must be one of learned, fixed, rotating, none, got 'nine'; did you mean 'none'",
        ),
        ("k_max: 1", "k_max: 6", "t, row margin: flags: k_max must be a power of two, got 6; use 4 or 8"),
        ("k_max: 1", "k_max: four", "k_max must be a whole number, got 'four'"),
        ("k_max: 1", "k_max: true", "k_max must be a whole number, got True"),
        ("lr: 1e-4", "lr: fast", "t: common: lr must be a number, got 'fast'"),
        ("lr: 1e-4", "root: /data", "root belongs to the machine; give --root on the command line"),
        ("lr: 1e-4", "import_file: x.py", "give --import on the command line"),
        ("lr: 1e-4", "seed: 3", "the seeds of a row are its 'seeds'"),
        ("preset: cub", "preset: cup", "unknown preset 'cup'"),
        ("baseline: margin", "baseline: margn", "'margn', is no row; did you mean 'margin'"),
        ("seeds: [7]", "seeds: [7, 7]", "seeds must be a list of different whole numbers"),
        ("seeds: [7]", "seeds: []", "seeds must be a list of different whole numbers"),
        ("recall@1: 66", "recall@3: 66", "unknown metric 'recall@3': it has recall@1, recall@2"),
        ("common:", "metrics: 5\ncommon:", "t: metrics must be a list of scores, got 5; write metrics: "),
        ("common:", "metrics: recall@1\ncommon:", "t: metrics must be a list of scores, got 'recall@1'; "),
        ("common:", "metrics: [[nmi]]\ncommon:", r"t: metrics must be a list of scores, got \[\['nmi'\]\]"),
        ("common:", "metrics: [nmi, nmi]\ncommon:", "t: metrics must be different, got nmi, nmi"),
        ("common:", "metrics: [reid_recall@1]\ncommon:", "unknown metric 'reid_recall@1': it has recall@1"),
        ("common:", "metrics: [train_recall@1]\ncommon:", "unknown metric 'train_recall@1'"),
        ("common:", "metrics: [val_recal@1]\ncommon:", "'val_recal@1': .*; did you mean 'val_recall@1'"),
        ("recall@1: 66.93", "recall@1: high", "paper: recall@1 must be a score in percent, .* got 'high'"),
        ("recall@1: 66.93", "recall@1: null", "paper: recall@1 must be a score in percent, .* got None"),
        ("recall@1: 66.93", "recall@1: .nan", "paper: recall@1 must be a score in percent, .* got nan"),
        ("  margin:", "  mar/gin:", "a row's name is part of file names"),
        ("title: A table", "", "t has no 'title'"),
        ("ks: [1, 10]", "crop_scale: [1]", "crop_scale must be a list of 2"),
    ],
)
def test_what_a_table_may_not_say(old, new, message):
    assert old in GOOD
    with pytest.raises(ValueError, match=message):
        parse_table("t", GOOD.replace(old, new, 1))


def test_the_preset_of_a_section_may_be_no_list():
    text = "{title: T, preset: cub, sections: {s: {preset: [cub], rows: {a: {}}}}}"
    with pytest.raises(ValueError, match="unknown preset"):
        parse_table("t", text)


@pytest.mark.parametrize("data", ["vehicleid", "vehicleid:800"])
def test_a_table_may_name_every_score_that_its_runs_log(data):
    names = ["recall@5", "nmi", "val_map@r", "reid_recall@1", "reid_recall@5", "train_recall@1"]
    common = f"{{data: '{data}', val_classes: 5, train_recall: true}}"
    text = f"{{title: T, preset: vehicleid, metrics: {names}, common: {common}, rows: {{a: {{}}}}}}"
    assert parse_table("t", text).metrics == tuple(names)
    with pytest.raises(ValueError, match=r"unknown metric 'reid_recall@10': .*did you mean 'reid_recall@1'"):
        parse_table("t", text.replace("reid_recall@1'", "reid_recall@10'"))


def test_files_that_are_no_tables(tmp_path):
    with pytest.raises(ValueError, match="there is no table"):
        load_table(tmp_path / "nowhere.yaml")
    (tmp_path / "broken.yaml").write_text("rows: [")
    with pytest.raises(ValueError, match="is not YAML"):
        load_table(tmp_path / "broken.yaml")
    (tmp_path / "list.yaml").write_text("- a")
    with pytest.raises(ValueError, match="must be a table of names and values"):
        load_table(tmp_path / "list.yaml")


def test_changes_reach_every_row_but_not_what_the_rows_differ_in():
    table = parse_table("t", GOOD).with_changes(
        parse_changes(["epochs=3", "lr=2e-5", "crop-scale=[0.1, 0.5]"])
    )
    for row in table.rows:
        config = table.config(row, 0)
        assert (config.optimisation.epochs, config.optimisation.lr, config.data.crop_scale) == (
            3,
            2e-5,
            (0.1, 0.5),
        )
    with pytest.raises(ValueError, match="masks is what the rows of t differ in"):
        table.with_changes({"masks": "fixed"})
    with pytest.raises(ValueError, match="--set needs a name and a value"):
        parse_changes(["epochs"])
    with pytest.raises(ValueError, match="--set: unknown flag 'epoch'; did you mean 'epochs'"):
        parse_changes(["epoch=3"])


def test_a_loss_that_is_named_starts_from_its_own_arguments():
    changed = parse_table("t", GOOD.replace(", loss_args: {alpha: 0.1}", ""))
    changed = dataclasses.replace(changed, common={**changed.common, "loss_args": {"beta": 1.0}})
    assert changed.config(changed.rows[0], 0).loss.args == {"beta": 1.0}
    assert changed.config(changed.rows[1], 7).loss.args == {}


def test_every_default_is_of_its_kind():
    config = Config()
    for name, kind in KINDS.items():
        if name not in ("root", "backbone_weights", "import_file"):
            assert convert(kind, config.settings()[name]) == config.settings()[name], name


TUNING = ("cub_tuning", "cub_beta", "omniglot_tuning")  # judged by held-out classes alone


@pytest.mark.parametrize("path", sorted(TABLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_table_that_we_ship(path):
    table = load_table(path)
    text = path.read_text()
    assert f"divconq reproduce tables/{path.name}" in text, "the header says how it is run"
    tuning = path.stem in TUNING
    judged = "val_" if tuning else ""
    assert table.metrics[:2] == (f"{judged}recall@1", f"{judged}map@r"), "MAP@R stands next to R@1"
    seen = []
    for row in table.rows:
        config = table.config(row, 0)
        assert config.data.val_classes > 0 or path.stem == "demo_margin", "it selects on other species"
        assert (row.section, config) not in seen, f"{row.name} is the same as another row"
        seen.append((row.section, config))
        assert all(30 < figure < 100 for figure in row.paper.values())
        if row.baseline is not None:
            base = next(other for other in table.rows if other.name == row.baseline)
            assert table.config(base, 0).division.k_max == 1 or tuning or row.name.startswith("divided-")
            assert set(row.seeds) <= set(base.seeds), "differences are paired by seed"
            assert config.loss.name == table.config(base, 0).loss.name


def test_a_table_on_top_of_another_preset():
    table = load_table(TABLES / "cub_margin.yaml")
    paper = table.with_preset("cub-paper")
    assert (paper.name, paper.title) == (
        "cub_margin-cub-paper",
        "CUB200-2011, margin loss (preset cub-paper)",
    )
    for row in paper.rows:
        assert paper.config(row, 3) == preset("cub-paper").replace(val_classes=10, seed=3, **row.flags)
    with pytest.raises(ValueError, match=r"unknown preset 'cub-papers'.*did you mean 'cub-paper'"):
        table.with_preset("cub-papers")


def test_tables_for_all_five_datasets_of_the_paper():
    names = {load_table(path).preset for path in TABLES.glob("*.yaml")}
    assert names == {"cub", "cub-paper", "cars", "sop", "inshop", "vehicleid", "omniglot", "demo"}


def too_short(config):
    epochs, division = config.optimisation.epochs, config.division
    return k_reached(epochs, division.strategy, division.k_max, division.divide_every) < division.k_max


@pytest.mark.parametrize("path", sorted(TABLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_rows_get_to_all_the_clusters_they_name(path):
    table = load_table(path)
    short = {row.name for row in table.rows if too_short(table.config(row, 0))}
    assert short == ({"e20"} if path.stem == "cub_e" else set())  # its title says so


def test_rows_may_be_named_by_a_learning_rate():
    text = "{title: T, preset: cub, rows: {1e-3: {flags: {lr: 1e-3}}, 1e-4: {flags: {lr: 1.0e-4}}}}"
    table = parse_table("t", text)
    assert [row.name for row in table.rows] == ["1e-3", "1e-4"]
    assert [table.config(row, 0).optimisation.lr for row in table.rows] == [1e-3, 1e-4]
