import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from made_up_results import TABLE, TEXT, result, write_old_result

from divconq import __version__
from divconq.config import Config
from divconq.experiments import origin, results
from divconq.experiments.origin import code_version, hardware
from divconq.experiments.results import append_result, columns, read_result_file, read_results
from divconq.experiments.runner import run_name
from divconq.experiments.settings import agree, portable, settings_of
from divconq.experiments.table import parse_table


def test_a_result_is_read_back_as_it_was_written(tmp_path):
    made = result("fixed", 1, [60, None, 62], [50, 51, 52])
    file = tmp_path / "deep" / "folder" / "made_up.jsonl"
    append_result(file, made)
    assert read_results(tmp_path) == [made]
    assert file.stat().st_size < 3000
    assert file.read_text().count("\n") == 1
    assert [other.name for other in file.parent.iterdir()] == ["made_up.jsonl"], "nothing else is left"


def test_a_result_of_an_older_version_has_the_name_of_its_file(tmp_path):
    made = result("fixed", 1, [60])
    write_old_result(tmp_path / "fixed-1.json", made)
    assert read_results(tmp_path) == [made]


@pytest.mark.parametrize("kept", [0, 1, 300, -2, -1])
def test_a_line_cut_short_is_ignored_and_removed_by_the_next_append(tmp_path, kept):
    file, results = tmp_path / "t.jsonl", [result("fixed", seed, [60]) for seed in range(3)]
    append_result(file, results[0])
    first = file.read_bytes()
    append_result(file, results[1])
    last = file.read_bytes()[len(first) :]
    file.write_bytes(first + last[:kept])  # the process was killed while it wrote
    whole = kept == -1  # only the line break is missing
    assert read_result_file(file) == results[: 1 + whole]
    append_result(file, results[2])
    assert read_result_file(file) == [results[0], *results[1 : 1 + whole], results[2]]
    assert file.read_bytes().count(b"\n") == 2 + whole


def test_several_processes_append_to_one_file(tmp_path):
    file = tmp_path / "t.jsonl"
    program = (
        "import sys; from pathlib import Path; from made_up_results import result\n"
        "from divconq.experiments.results import append_result\n"
        "for seed in range(20): append_result(Path(sys.argv[1]), result(sys.argv[2], seed, [60.0] * 200))\n"
    )
    here = str(Path(__file__).parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([here, *filter(None, sys.path)])}
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(file), row], env=environment)
        for row in ("plain", "fixed")
    ]
    assert [process.wait() for process in processes] == [0, 0]
    assert {(one.row, one.seed) for one in read_result_file(file)} == {
        (row, seed) for row in ("plain", "fixed") for seed in range(20)
    }


def test_results_come_oldest_first_and_a_damaged_file_is_named(tmp_path):
    for seed in (2, 0, 1):
        append_result(tmp_path / f"{3 - seed}.jsonl", result("fixed", seed, [60]))
    assert [each.seed for each in read_results(tmp_path)] == [0, 1, 2]
    assert read_results(tmp_path / "nowhere") == []
    (tmp_path / "x.json").write_text('{"format": "divconq result 1"')
    with pytest.raises(ValueError, match=r"x.json is not the result of a run"):
        read_results(tmp_path)
    (tmp_path / "x.json").write_text('{"a": 1}')
    with pytest.raises(ValueError, match="its format is not 'divconq result 1'"):
        read_results(tmp_path)
    (tmp_path / "x.json").unlink()
    with (tmp_path / "1.jsonl").open("a") as file:
        file.write('{"cut": \n')
    with pytest.raises(ValueError, match=r"line 2 of .*1.jsonl is not the result of a run"):
        read_results(tmp_path)


def test_settings_that_were_renamed_still_agree(tmp_path):
    table = parse_table(
        "t", TEXT.replace("{masks: fixed}", "{loss: margin, loss_args: {without_replacement: true}}")
    )
    made = result("fixed", 0, [60], table=table)
    old = {**made.settings, "loss_args": {"apart": True}}
    write_old_result(tmp_path / "a.json", dataclasses.replace(made, settings=old))
    (read,) = read_results(tmp_path)
    assert agree(read.settings, table.settings(table.rows[1], 0, {}))
    assert not agree(old, table.settings(table.rows[1], 0, {}))


def test_a_setting_that_was_removed_agrees_if_it_had_its_default(tmp_path, monkeypatch):
    def upgraded(settings):
        """A version without the setting ``went``, whose default was 1."""
        return {name: value for name, value in settings.items() if (name, value) != ("went", 1)}

    monkeypatch.setattr(results, "upgraded", upgraded)
    made = result("fixed", 0, [60])
    for value in (1, 2):
        append_result(
            tmp_path / "t.jsonl", dataclasses.replace(made, settings={**made.settings, "went": value})
        )
    default, other = read_results(tmp_path)
    assert agree(default.settings, made.settings)
    assert not agree(other.settings, made.settings)


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
        assert TABLE.settings(row, seed, portable(changes)) == settings_of(config)


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


def test_the_cost_of_epochs_of_different_lengths():
    """Epochs of 100, 100 and 600 images; the first one compiles."""
    run = result("plain", 0, [60, 61, 62])
    log = {"seconds_train": [40.0, 1.0, 6.0], "images_per_s": [2.5, 100.0, 100.0]}
    run = dataclasses.replace(run, metrics=run.metrics | log | {"seconds_divide": [None, 0.5, 0.5]})
    longest = dataclasses.replace(run, settings={**run.settings, "epoch_length": "largest"})
    assert longest.cost == pytest.approx(800 / 100 + 2 * 0.5)
    assert run.cost == 3 * 6.0 + 2 * 0.5, "by epochs"


def test_the_version_of_the_code(tmp_path, monkeypatch):
    package = tmp_path / "divconq"
    (package / "experiments").mkdir(parents=True)
    monkeypatch.setattr(origin, "__file__", str(package / "experiments" / "origin.py"))
    assert code_version("abc") == "abc"
    assert code_version() == f"divconq {__version__}"

    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(
            ["git", "-C", tmp_path, *who, *words], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init")
    (package / "train.py").write_text("1")
    (tmp_path / "notes").write_text("1")
    git("add", "divconq")
    git("commit", "-m", "one")
    assert code_version() == git("rev-parse", "--short=12", "HEAD"), "other files do not matter"
    (package / "train.py").write_text("2")
    assert code_version().endswith("+changes")
    monkeypatch.setenv("PATH", "")
    assert code_version() == f"divconq {__version__}"


def test_hardware_has_a_name(monkeypatch):
    assert "threads of" in hardware("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    assert hardware("auto") == "a GPU"
    assert "threads of" in hardware("cpu")
