import dataclasses
import json
import subprocess

import pytest
import torch
from made_up_results import TABLE, result

from divconq import __version__
from divconq.config import Config
from divconq.experiments import results
from divconq.experiments.results import (
    agree,
    code_version,
    columns,
    hardware,
    portable,
    read_results,
    run_name,
    wanted,
    write_result,
)
from divconq.experiments.results import settings as settings_of


def test_a_result_is_read_back_as_it_was_written(tmp_path):
    made = result("fixed", 1, [60, None, 62], [50, 51, 52])
    path = write_result(tmp_path / "deep" / "folder", "fixed-1", made)
    assert read_results(tmp_path) == [made]
    assert path.stat().st_size < 3000
    assert [line.strip().partition(":")[0] for line in path.read_text().splitlines()].count('"recall@1"') == 1
    assert [file.name for file in path.parent.iterdir()] == ["fixed-1.json"], "nothing else is left"


def test_results_come_oldest_first_and_a_file_that_is_none_is_named(tmp_path):
    for seed in (2, 0, 1):
        write_result(tmp_path, f"{3 - seed}", result("fixed", seed, [60]))
    assert [each.seed for each in read_results(tmp_path)] == [0, 1, 2]
    assert read_results(tmp_path / "nowhere") == []
    (tmp_path / "x.json").write_text('{"format": "divconq result 1"')
    with pytest.raises(ValueError, match=r"x.json is not the result of a run"):
        read_results(tmp_path)
    (tmp_path / "x.json").write_text('{"a": 1}')
    with pytest.raises(ValueError, match="its format is not 'divconq result 1'"):
        read_results(tmp_path)


def test_settings_leave_the_machine_out_and_know_files_by_content(tmp_path):
    for name, content in {"a": b"weights", "b": b"weights", "c": b"others"}.items():
        (tmp_path / name).write_bytes(content)
    a, b, c = (settings_of(Config.of(backbone_weights=tmp_path / name, workers=ord(name))) for name in "abc")
    assert a == b
    assert a != c
    assert a["backbone_weights"].startswith("sha256:")
    assert str(tmp_path) not in json.dumps(a)
    assert json.loads(json.dumps(a)) == a
    assert portable({"data": str(tmp_path / "photos")}) == {"data": "photos"}
    with pytest.raises(ValueError, match="there is no file"):
        settings_of(Config.of(import_file=tmp_path / "nowhere.py"))


def test_every_other_setting_tells_two_runs_apart():
    base = settings_of(Config())
    left_out = Config().settings().keys() - base.keys()
    machine = {"root", "cache", "workers", "device", "save_minutes", "save_steps"}
    assert left_out == machine | {"train_recall"}
    row = TABLE.rows[0]
    names = set()
    for name, value in base.items():
        changed = {**base, name: "another" if isinstance(value, str) else 12345}
        assert not agree(base, changed), name
        assert not agree(changed, base), name
        names.add(run_name(TABLE, row, 0, changed))
    assert len(names) == len(base)


def test_settings_of_another_version():
    base = settings_of(Config())
    older = {name: value for name, value in base.items() if name != "crop"}
    assert agree(older, base), "a new setting at its default changes nothing"
    assert not agree(older, {**base, "crop": "random_resized"})
    assert not agree({**base, "setting_that_went": 1}, base)


def test_overrides_give_the_settings_of_the_changed_table(tmp_path):
    (tmp_path / "weights").write_bytes(b"weights")
    changes = {"ks": (1, 5), "lr": 0.5, "backbone_weights": tmp_path / "weights", "data": "somewhere/photos"}
    for row, seed in TABLE.runs():
        config = TABLE.with_changes(changes).config(row, seed)
        assert wanted(TABLE, row, seed, portable(changes)) == settings_of(config)


def test_columns_are_the_log_turned_over():
    records = [
        {"epoch": 1, "loss": 0.123456789, "seconds": {"train": 1.0}, "recall@1": 0.5},
        {"epoch": 2, "loss": 0.1, "seconds": {"train": 2.0, "divide": 3.0}},
    ]
    assert columns(records) == {
        "epoch": [1, 2],
        "loss": [0.123457, 0.1],
        "recall@1": [0.5, None],
        "seconds_train": [1.0, 2.0],
        "seconds_divide": [None, 3.0],
    }
    assert result("plain", 0, [60, 61]).cost == 100.0


def test_what_is_compiled_once_is_no_cost_of_training():
    run = result("plain", 0, [60, 61, 62, 63])
    run = dataclasses.replace(
        run,
        metrics=run.metrics
        | {"seconds_train": [40.0, 1.0, 1.0, 1.0], "seconds_divide": [None, 9.0, 0.5, 0.5]},
    )
    assert run.cost == 4 * 1.0 + 3 * 0.5


def test_the_version_of_the_code(tmp_path, monkeypatch):
    package = tmp_path / "divconq"
    (package / "reproduce").mkdir(parents=True)
    monkeypatch.setattr(results, "__file__", str(package / "reproduce" / "results.py"))
    assert code_version("abc") == "abc"
    assert code_version() == f"divconq {__version__}"

    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(
            ["git", "-C", tmp_path, *who, *words], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init")
    (package / "config.py").write_text("1")
    (tmp_path / "notes").write_text("1")
    git("add", "divconq")
    git("commit", "-m", "one")
    assert code_version() == git("rev-parse", "--short=12", "HEAD"), "other files do not matter"
    (package / "config.py").write_text("2")
    assert code_version().endswith("+changes")
    monkeypatch.setenv("PATH", "")
    assert code_version() == f"divconq {__version__}"


def test_hardware_has_a_name(monkeypatch):
    assert "threads of" in hardware("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    assert hardware("auto") == "a GPU"
    assert "threads of" in hardware("cpu")
