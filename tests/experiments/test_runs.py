import json
import shutil
from pathlib import Path

import pytest
from made_up_results import write_old_result

from divconq.cli import main
from divconq.experiments import load_table, parse_changes, parse_table, plan, read_results, render, reproduce
from divconq.runs import checkpoints

TEXT = """
title: Photos
preset: demo
common: {{data: '{photos}', loss: margin, per_class: null, image_size: 16, resize: 20, dim: 16, batch: 12,
  epochs: 2, divide_every: 1, k_max: 2, ks: [1, 2], val_classes: 2}}
baseline: plain
seeds: [0, 1]
metrics: [recall@1, map@r]
rows:
  plain:
    flags: {{k_max: 1, masks: none}}
  fixed:
    flags: {{masks: fixed}}
"""


@pytest.fixture
def text(photos):
    return TEXT.format(photos=photos)


@pytest.fixture
def table(text):
    return parse_table("photos", text)


@pytest.fixture(scope="module")
def complete(photos, tmp_path_factory):
    """The whole table, run once."""
    out = tmp_path_factory.mktemp("complete")
    said = []
    outcome = reproduce(
        parse_table("photos", TEXT.format(photos=photos)), out, say=said.append, device="cpu", workers=2
    )
    return out, outcome, said


def states(table, out, changes=None, **part):
    return {(job.row.name, job.seed): job.result is not None for job in plan(table, out, changes, **part)}


def scores(result):
    return {
        name: column
        for name, column in result.metrics.items()
        if not name.startswith(("seconds", "images_per"))
    }


def forget(out, name):
    """Remove the one result whose name begins so."""
    file = out / "finished" / "photos.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not json.loads(line)["name"].startswith(name)]
    assert len(kept) == len(lines) - 1
    file.write_text("".join(kept))


@pytest.fixture
def no_training(monkeypatch):
    def train(*args, **kwargs):
        raise AssertionError("nothing was to be trained")

    monkeypatch.setattr("divconq.train.train", train)


def test_a_table_is_run_kept_and_rendered(complete):
    out, outcome, said = complete
    results = read_results(out / "finished")
    assert {(result.row, result.seed) for result in results} == {
        (r, s) for r in ("plain", "fixed") for s in (0, 1)
    }
    assert sorted(path.name for path in out.iterdir()) == [
        "finished",
        "photos.json",
        "photos.md",
        "photos.tex",
        "runs",
    ]
    assert [path.name for path in (out / "finished").iterdir()] == ["photos.jsonl"], "one file per table"
    assert list((out / "runs").iterdir()) == [], "checkpoints are not kept"
    for result in results:
        assert result.metrics["epoch"] == [1, 2]
        assert result.settings["seed"] == result.seed
        assert {"recall@1", "val_recall@1", "map@r", "loss", "k", "seconds_train"} <= result.metrics.keys()
        assert result.metrics["k"] == ([1, 1] if result.row == "plain" else [1, 2])
        assert result.seconds > 0
        assert "threads of" in result.hardware
    assert (outcome.failed, outcome.out_of_time) == ((), False)
    plain, fixed = outcome.figures["rows"]
    assert (plain["missing"], fixed["missing"]) == ([], [])
    for row in (plain, fixed):
        for seed in (0, 1):
            result = next(each for each in results if (each.row, each.seed) == (row["row"], seed))
            r1, held = result.metrics["recall@1"], result.metrics["val_map@r"]
            values = {name: score["values"][seed] for name, score in row["scores"]["recall@1"].items()}
            best = held.index(max(held)) if row is plain else 1  # the second epoch of fixed has two clusters
            assert values == pytest.approx({
                "last": 100 * r1[-1], "held_out": 100 * r1[best], "test": 100 * (max(r1) if row is plain else r1[1]),
            })  # fmt: skip
    assert said[0] == "photos: 4 runs, 0 done"
    assert [line.partition(":")[0] for line in said[1:]] == [
        "[1/4] plain, seed 0", "[2/4] fixed, seed 0", "[3/4] plain, seed 1", "[4/4] fixed, seed 1",
    ]  # fmt: skip


def test_what_is_done_is_skipped_also_by_another_table_and_on_another_machine(
    complete, text, tmp_path, no_training
):
    shutil.copytree(complete[0] / "finished", tmp_path / "elsewhere" / "finished")
    said = []
    again = reproduce(
        parse_table("photos", text), tmp_path / "elsewhere", say=said.append, device="auto", workers=1
    )
    assert said == ["photos: 4 runs, 4 done"]
    assert again.figures == complete[1].figures
    other = parse_table(
        "other", text.replace("  plain:", "  simple:").replace("baseline: plain", "baseline: simple")
    )
    assert all(states(other, complete[0]).values())


def test_results_of_an_older_version_one_file_a_run_are_found(complete, table, tmp_path, no_training):
    for result in read_results(complete[0] / "finished"):
        write_old_result(tmp_path / "finished" / f"{result.name}.json", result)
    assert reproduce(table, tmp_path, say=lambda line: None).figures == complete[1].figures
    assert plan(table, tmp_path)[0].result.name.startswith("demo-plain-0-")


SECTIONS = """
sections:
  one:
    rows:
      plain: {{flags: {{k_max: 1, masks: none}}}}
  two:
    baseline: plain
    common: {{masks: none}}
    rows:
      plain: {{flags: {{k_max: 1}}}}
      fixed: {{flags: {{masks: fixed}}}}
"""


def test_rows_with_the_same_settings_are_run_once(photos, tmp_path):
    sections = (TEXT.partition("baseline:")[0] + SECTIONS).format(photos=photos)
    table = parse_table("sections", sections)
    assert [row.name for row in table.rows] == ["one-plain", "two-plain", "two-fixed"]
    assert [row.baseline for row in table.rows] == [None, None, "two-plain"]
    said = []
    outcome = reproduce(table, tmp_path, seeds=[0], say=said.append, device="cpu", workers=2)
    assert [line.partition(":")[0] for line in said[1:]] == [
        "[1/3] one-plain, seed 0",
        "[3/3] two-fixed, seed 0",
    ]
    one, two, fixed = outcome.figures["rows"]
    assert one["runs"] == two["runs"] != fixed["runs"]
    assert len(read_results(tmp_path / "finished")) == 2


def test_a_changed_definition_is_run_again_and_only_that(complete, text, tmp_path):
    shutil.copytree(complete[0] / "finished", tmp_path / "finished")
    before = read_results(tmp_path / "finished")
    one_row = parse_table("photos", text.replace("{masks: fixed}", "{masks: learned}"))
    assert states(one_row, tmp_path) == {
        ("plain", 0): True, ("fixed", 0): False, ("plain", 1): True, ("fixed", 1): False,
    }  # fmt: skip
    assert not any(states(parse_table("photos", text.replace("dim: 16", "dim: 24")), tmp_path).values())
    assert not any(states(parse_table("photos", text), tmp_path, {"lr": 0.5}).values())
    reproduce(one_row, tmp_path, rows=["fixed"], seeds=[1], say=lambda line: None, device="cpu")
    assert states(one_row, tmp_path)["fixed", 1]
    kept = [result for result in read_results(tmp_path / "finished") if result.settings["masks"] != "learned"]
    assert kept == before, "the old results stay"


def test_a_stopped_table_goes_on_where_it_was(complete, table, tmp_path, monkeypatch):
    epochs = []
    save = checkpoints.save

    def save_then_stop(folder, which, state):
        save(folder, which, state)
        if which == "last":  # whether an epoch is also the best one depends on rounding
            epochs.append(state["epoch"])
            if len(epochs) == 3:
                raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints, "save", save_then_stop)
    with pytest.raises(KeyboardInterrupt):
        reproduce(table, tmp_path, seeds=[0], say=lambda line: None, device="cpu", workers=2)
    assert epochs == [1, 2, 1]
    assert states(table, tmp_path, seeds=[0]) == {("plain", 0): True, ("fixed", 0): False}
    moved = tmp_path.parent / "moved"
    tmp_path.rename(moved)  # as on another machine
    reproduce(table, moved, seeds=[0], say=lambda line: None, device="cpu", workers=2)
    assert epochs == [1, 2, 1, 2], "neither the finished run nor the first epoch is trained again"
    never_stopped = {
        (result.row, result.seed): scores(result) for result in read_results(complete[0] / "finished")
    }
    for result in read_results(moved / "finished"):
        assert scores(result) == never_stopped[result.row, result.seed]


def test_a_run_stopped_in_its_first_epoch_starts_anew(complete, table, tmp_path):
    name = plan(table, tmp_path, rows=["plain"], seeds=[0])[0].name
    folder = tmp_path / "runs" / name
    (folder / "divisions").mkdir(parents=True)
    reproduce(table, tmp_path, rows=["plain"], seeds=[0], keep_runs=True, say=lambda line: None, device="cpu")
    assert (folder / "model.safetensors").is_file(), "keep_runs keeps the model"
    (tmp_path / "finished" / "photos.jsonl").unlink()
    reproduce(table, tmp_path, rows=["plain"], seeds=[0], say=lambda line: None, device="cpu")
    (again,) = read_results(tmp_path / "finished")
    (first,) = (
        result
        for result in read_results(complete[0] / "finished")
        if (result.row, result.seed) == (again.row, again.seed)
    )
    assert scores(first) == scores(again), (
        "a run that only lacked its result is not trained again, nor changed"
    )


def test_no_run_starts_that_would_end_too_late(complete, table, tmp_path, no_training):
    shutil.copytree(complete[0] / "finished", tmp_path / "finished")
    forget(tmp_path, "demo-fixed-1-")
    said = []
    outcome = reproduce(table, tmp_path, max_minutes=0, say=said.append, device="cpu")
    assert outcome.out_of_time
    assert said[-1].startswith("1 runs are left: the next takes about")
    assert outcome.figures["rows"][1]["missing"] == [1]
    assert "Not run yet: fixed: seed 1." in (tmp_path / "photos.md").read_text()


def test_a_run_that_fails_is_reported_and_the_others_go_on(complete, table, tmp_path, monkeypatch):
    from divconq import train as training

    train = training.train

    def sometimes(config, out, **kwargs):
        if config.masks.kind == "fixed":
            raise FloatingPointError("the loss is not finite")
        return train(config, out, **kwargs)

    monkeypatch.setattr("divconq.train.train", sometimes)
    outcome = reproduce(table, tmp_path, seeds=[0], say=lambda line: None, device="cpu")
    assert outcome.failed == ("fixed, seed 0: the loss is not finite",)
    assert [row["missing"] for row in outcome.figures["rows"]] == [[1], [0, 1]]


def test_mistakes_are_found_before_anything_runs(table, text, tmp_path, no_training):
    wrong = parse_table("photos", text.replace("{masks: fixed}", "{loss: tripplet}"))
    with pytest.raises(ValueError, match=r"row fixed: .*did you mean 'triplet'"):
        reproduce(wrong, tmp_path / "out", device="cpu")
    with pytest.raises(ValueError, match=r"photos has no row 'plian'.*did you mean 'plain'"):
        reproduce(table, tmp_path / "out", rows=["plian"])
    with pytest.raises(ValueError, match="photos has no seed 7"):
        reproduce(table, tmp_path / "out", seeds=[0, 7])
    assert not (tmp_path / "out").exists()


def test_settings_and_weights_of_the_command_line_are_found_again_without_them(table, tmp_path):
    from safetensors.torch import save_file

    from divconq.model import SmallNet

    weights = tmp_path / "small.safetensors"
    save_file(SmallNet().state_dict(), weights)
    changes = {"epochs": 1, "backbone_weights": weights}
    reproduce(
        table, tmp_path / "out", changes, rows=["plain"], say=lambda line: None, device="cpu", commit="abc"
    )
    result = read_results(tmp_path / "out" / "finished")[0]
    assert (result.files, result.code) == ({"backbone_weights": "small.safetensors"}, "abc")
    assert result.overrides == {"epochs": 1, "backbone_weights": result.settings["backbone_weights"]}
    weights.unlink()
    figures = render(table, tmp_path / "out")
    assert figures["rows"][0]["missing"] == []
    assert figures["overrides"] == result.overrides
    assert str(tmp_path) not in json.dumps(figures)


def test_the_command(complete, text, tmp_path, capsys, no_training):
    path, out = tmp_path / "photos.yaml", tmp_path / "out"
    path.write_text(text)
    shutil.copytree(complete[0] / "finished", out / "finished")
    forget(out, "demo-plain-0-")
    main(["reproduce", str(path), "--out", str(out), "--dry-run", "--seeds", "0"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "plain, seed 0: to do"
    assert lines[1].startswith("fixed, seed 0: done, demo-fixed-0-")
    assert lines[2] == "1 of 2 are done"
    main(["reproduce", str(path), "--out", str(out), "--render-only"])
    assert capsys.readouterr().out.strip() == (out / "photos.md").read_text().strip()
    main(["reproduce", str(path), "--out", str(out), "--rows", "fixed", "--json", "--device", "cpu"])
    printed = capsys.readouterr()
    assert json.loads(printed.out)["rows"][0]["missing"] == [0]
    assert printed.err == "photos: 2 runs, 2 done\n"


def test_several_tables_in_one_command(complete, text, tmp_path, capsys, no_training):
    paths, out = [tmp_path / "one.yaml", tmp_path / "two.yaml"], tmp_path / "out"
    for path in paths:
        path.write_text(text)
    paths[1].write_text(text.replace("  plain:", "  simple:").replace("baseline: plain", "baseline: simple"))
    shutil.copytree(complete[0] / "finished", out / "finished")
    command = ["reproduce", *map(str, paths), "--out", str(out), "--device", "cpu"]
    main([*command, "--json"])
    printed = capsys.readouterr()
    both = [json.loads(line) for line in printed.out.splitlines()]
    assert [(table["table"], [row["row"] for row in table["rows"]]) for table in both] == [
        ("one", ["plain", "fixed"]),
        ("two", ["simple", "fixed"]),
    ]
    assert printed.err == "one: 4 runs, 4 done\ntwo: 4 runs, 4 done\n"
    main([*command, "--rows", "simple,fixed", "--dry-run", "--seeds", "0"])
    listed = capsys.readouterr().out
    assert [line.split(":")[0] for line in listed.splitlines()] == [
        "fixed, seed 0",
        "1 of 1 are done",
        "simple, seed 0",
        "fixed, seed 0",
        "2 of 2 are done",
    ]
    main([*command, "--rows", "simple"])
    assert capsys.readouterr().err == "two: 2 runs, 2 done\n"
    for words, message in (
        ([*command, "--rows", "smiple"], "one, two has no row 'smiple'"),
        (["reproduce"], "no table was named"),
    ):
        with pytest.raises(SystemExit):
            main(words)
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--set epoch=3", "--set: unknown flag 'epoch'; did you mean 'epochs'?"),
        ("--set masks=fixed", "masks is what the rows of photos differ in"),
        ("--set root=x", "root belongs to the machine; give --root on the command line"),
        ("--seeds one", "--seeds must be whole numbers"),
        ("--rows none", "photos has no row 'none'"),
        ("--backbone-weights nowhere", "there is no file"),
    ],
)
def test_bad_flags_are_one_sentence(flags, message, text, tmp_path, capsys):
    (tmp_path / "photos.yaml").write_text(text)
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", str(tmp_path / "photos.yaml"), "--out", str(tmp_path / "out"), *flags.split()])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_command_that_is_stopped_or_has_failures_says_so(text, tmp_path, capsys, monkeypatch):
    (tmp_path / "photos.yaml").write_text(text)
    for error, code, message in (
        (KeyboardInterrupt(), 130, "continue from the last checkpoint with the same command"),
        (
            FloatingPointError("not finite"),
            1,
            "2 runs failed: plain, seed 0: not finite; fixed, seed 0: not finite",
        ),
    ):

        def fails(*args, error=error, **kwargs):
            raise error

        monkeypatch.setattr("divconq.train.train", fails)
        with pytest.raises(SystemExit) as stop:
            main(["reproduce", str(tmp_path / "photos.yaml"), "--out", str(tmp_path / "out"), "--seeds", "0"])
        assert stop.value.code == code
        assert message in capsys.readouterr().err


def test_the_demo_table_in_its_smallest_form(photos, tmp_path):
    table = load_table(Path(__file__).parents[2] / "tables" / "demo.yaml")
    tiny = ["epochs=2", "divide_every=1", "image_size=16", "resize=20", "dim=16", "batch=12", "val_classes=2"]
    changes = parse_changes([*tiny, "ks=[1, 2]", "nmi=false", f"data={photos}"])
    outcome = reproduce(table, tmp_path, changes, seeds=[0], say=lambda line: None, device="cpu", workers=2)
    for row in outcome.figures["rows"]:
        assert row["missing"] == [1, 2, 3, 4]
        assert 0 <= row["scores"]["recall@1"]["held_out"]["mean"] <= 100
        assert row["scores"]["nmi"]["last"] is None, "what was not measured stays empty"
