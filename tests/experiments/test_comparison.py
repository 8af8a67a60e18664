import json
import statistics
from pathlib import Path

import pytest
from made_up_results import write_old_result

from divconq.cli import main
from divconq.config import Config
from divconq.experiments.comparison import compare, group, read_runs
from divconq.experiments.results import Result, append_result
from divconq.experiments.settings import settings_of
from divconq.runs.folder import Run

TEXT = """\
            seeds   score    last epoch  best test epoch  training
masks none  2       R@1    52.00 ± 2.83     63.00 ± 4.24  15 ± 3 s
                    R@10   76.00 ± 1.41     81.50 ± 2.12
                    NMI    30.00 ± 0.00     30.00 ± 0.00
masks fixed 2 of 3  R@1    72.00 ± 2.83     83.00 ± 4.24  17 ± 3 s
"""


def made(folder, scores, config=None, seconds=(4.0, 1.0), ks=None, **changes):
    """A run whose R@1 is ``scores`` at its epochs, in percent; None is an epoch that was not evaluated."""
    config = config or Config.of(epochs=len(scores), ks=(1, 10))
    run = Run.create(Path(folder), config.replace(**changes))
    for epoch, score in enumerate(scores, 1):
        figures = {}
        if score is not None:
            figures = {
                "recall@1": score / 100,
                "recall@10": score / 200 + 0.5,
                "map@r": score / 400,
                "nmi": 0.3,
            }
            if run.config.data.val_classes:
                figures["val_map@r"] = 1 - score / 100
        phases = {"train": seconds[0], "divide": seconds[1], "evaluate": 100.0}
        run.log({"epoch": epoch, "k": ks[epoch - 1] if ks else 4, "loss": 1.0, **figures, "seconds": phases})
    return run.folder


def rows(*paths, metrics=()):
    return compare([Path(path) for path in paths], metrics)["rows"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_seeds_are_put_together_and_rows_named_by_what_they_differ_in():
    scores = {("none", 0): [50, 40], ("none", 1): [60, 44], ("none", 2): [None, 52], ("fixed", 0): [60, 80]}
    for (masks, seed), values in scores.items():
        made(
            f"{masks}-{seed}",
            values,
            masks=masks,
            seed=seed,
            root=Path(f"disk{seed}"),
            seconds=(4.0 + seed, 1.0),
        )
    none, fixed = rows("none-0", "none-1", "fixed-0", "none-2")
    assert (none["title"], fixed["title"]) == ("masks none", "masks fixed")
    assert (none["seeds"], fixed["seeds"]) == ([0, 1, 2], [0])
    last, best = none["scores"]["recall@1"]["last"], none["scores"]["recall@1"]["test"]
    assert last["mean"] == pytest.approx(statistics.mean([40, 44, 52]))
    assert last["deviation"] == pytest.approx(statistics.stdev([40, 44, 52]))
    assert best["mean"] == pytest.approx(statistics.mean([50, 60, 52]))
    assert none["scores"]["map@r"]["test"]["mean"] == pytest.approx(statistics.mean([12.5, 15, 13])), (
        "of the epoch that R@1 chose"
    )
    assert none["epochs"] == {"last": {0: 2, 1: 2, 2: 2}, "held_out": {}, "test": {0: 1, 1: 1, 2: 2}}
    assert none["seconds"]["mean"] == pytest.approx(statistics.mean([10, 12, 14])), "without evaluation"
    assert none["seconds"]["deviation"] == pytest.approx(2.0)
    assert fixed["scores"]["recall@1"]["last"]["deviation"] is None


def test_what_does_not_change_the_result_does_not_part_runs():
    for seed, changes in enumerate(
        [{}, {"workers": 3, "save_steps": 5}, {"train_recall": True, "device": "cpu"}]
    ):
        made(f"run{seed}", [50], seed=seed, **changes)
    assert [row["seeds"] for row in rows("run0", "run1", "run2")] == [[0, 1, 2]]


def test_the_best_epoch_is_chosen_by_the_runs_own_criterion():
    made("test", [50, 40])
    made("held", [50, 40], val_classes=2)
    assert compare([Path("test")])["selections"] == ["last", "test"]
    figures = compare([Path("held")])
    assert figures["selections"] == ["last", "held_out"]
    assert figures["rows"][0]["scores"]["recall@1"]["held_out"]["mean"] == pytest.approx(40)
    assert "MAP@R on them selects the epoch" in " ".join(figures["notes"])
    both = compare([Path("test"), Path("held")])
    assert both["selections"] == ["last", "held_out", "test"]
    assert both["rows"][0]["scores"]["recall@1"]["held_out"] is None


def test_runs_that_never_were_evaluated_or_are_not_at_their_end_are_listed_and_said_so():
    config = Config.of(epochs=3, ks=(1, 10))
    made("done", [50, 50, 50], config)
    made("begun", [], config, seed=1)
    made("scoreless", [None, None], config, seed=2)
    made("stopped", [40, 40], config, seed=3)
    made("other", [], config, k_max=8)
    figures = compare([Path(name) for name in ("done", "begun", "scoreless", "stopped", "other")])
    together, alone = figures["rows"]
    assert together["missing"] == [1, 2]
    assert alone["scores"]["recall@1"]["last"] is None
    assert figures["notes"][-4:] == [
        "begun was never evaluated; it has 0 of 3 epochs.",
        "scoreless was never evaluated; it has 2 of 3 epochs.",
        "stopped is not complete; it has 2 of 3 epochs.",
        "other was never evaluated; it has 0 of 3 epochs.",
    ]
    assert rows("begun")[0]["scores"] == {"recall@1": {"last": None, "held_out": None, "test": None}}


def test_a_seed_that_is_there_twice_is_no_second_seed():
    for name in ("old-0", "old-1", "new-0", "new-1"):
        made(name, [50], seed=int(name[-1]))
    figures = compare([Path(name) for name in ("old-0", "old-1", "new-0", "new-1", "./old-0")])
    assert [(row["title"], row["runs"]) for row in figures["rows"]] == [
        ("demo", ["old-0", "old-1"]),
        ("demo (2)", ["new-0", "new-1"]),
    ]
    assert "demo (2) has the settings and the seeds of a row above it: new-0, new-1." in figures["notes"]


def test_rows_that_differ_in_much_are_called_by_a_run():
    made("small", [50])
    made("large", [50], data="sop", k_max=8, dim=64, lr=1e-3, nmi=False)
    figures = compare([Path("small"), Path("large")])
    assert [row["title"] for row in figures["rows"]] == ["small", "large"]
    assert "large: data sop, dim 64, k_max 8, lr 0.001, nmi off." in figures["notes"]


def test_results_of_reproduce_stand_beside_run_folders_also_of_an_older_version():
    made("run-0", [50, 50], seed=0)
    config = Config.of(epochs=2, ks=(1, 10), seed=1)
    old = {name: value for name, value in settings_of(config).items() if name != "same_camera"}
    metrics = {"epoch": [1, 2], "recall@1": [None, 0.6], "seconds_train": [5.0, 5.0]}
    result = Result("t", "r", 1, old, {}, {}, "c", "h", "2", "2026", 10.0, metrics)
    append_result(Path("finished/t.jsonl"), result)
    write_old_result(Path("old/one.json"), result)
    for path in ("finished", "finished/t.jsonl", "old", "old/one.json"):
        (row,) = rows("run-0", path)
        assert row["seeds"] == [0, 1]
        assert row["scores"]["recall@1"]["last"]["mean"] == pytest.approx(55)


def test_a_weights_file_that_is_gone_does_not_matter():
    made("run-0", [50], backbone_weights=Path("/here/w.safetensors"))
    made("run-1", [50], backbone_weights=Path("/there/w.safetensors"), seed=1)
    assert len(group(read_runs([Path("run-0"), Path("run-1")]))) == 1


def test_the_table_in_a_terminal(capsys):
    for seed, low in enumerate([50, 54]):
        made(
            f"none-{seed}", [low + 10 + seed * 2, low], masks="none", seed=seed, seconds=(5.5 + 2 * seed, 1.0)
        )
        made(
            f"fixed-{seed}",
            [low + 30 + seed * 2, low + 20],
            masks="fixed",
            seed=seed,
            seconds=(6.5 + 2 * seed, 1),
        )
    made("fixed-2", [], Config.of(epochs=2, ks=(1, 10)), masks="fixed", seed=2)
    names = ["none-0", "none-1", "fixed-0", "fixed-1", "fixed-2"]
    main(["compare", *names, "--metric", "recall@1,recall@10,nmi"])
    out = capsys.readouterr().out
    assert [line.split() for line in out.splitlines()[:5]] == [line.split() for line in TEXT.splitlines()]
    assert out.endswith("fixed-2 was never evaluated; it has 0 of 2 epochs.\n")
    assert len({line.index("±") for line in out.splitlines()[1:7]}) == 1, "below each other"


def test_other_forms(capsys):
    made("one", [50, 40], masks="none")
    made("two", [60, 40], masks="fixed")
    main(["compare", "one", "two", "--format", "markdown"])
    assert "| masks none | 1 | R@1 | 40.00 | 50.00 | 10 s |" in capsys.readouterr().out
    main(["compare", "one", "two", "--format", "latex"])
    assert r"masks none & 1 & R@1 & 40.00 & 50.00 & 10 s \\" in capsys.readouterr().out
    main(["compare", "one", "two", "--format", "json"])
    assert json.loads(capsys.readouterr().out)["rows"][1]["flags"] == {"masks": "fixed"}


def test_unknown_metrics_name_the_nearest():
    made("one", [50])
    with pytest.raises(
        ValueError, match=r"unknown metric 'recall@2': these runs have recall@1, recall@10, map@r, nmi"
    ):
        compare([Path("one")], ["recall@2"])
    assert [*rows("one", metrics=["nmi"])[0]["scores"]] == ["nmi"]


def test_the_best_epoch_has_the_most_clusters_and_a_run_without_all_of_them_says_so(capsys):
    made("whole", [60, 70, 50, 55], ks=[1, 2, 4, 4])
    made("flat", [60, 70, 50, 55], ks=[4, 4, 4, 4], division="flat")
    made("stopped", [60, 40], Config.of(epochs=4, ks=(1, 10)), ks=[1, 2], division="random")
    figures = compare([Path(name) for name in ("whole", "flat", "stopped")])
    assert [row["epochs"]["test"] for row in figures["rows"]] == [{0: 4}, {0: 2}, {0: 2}]
    assert figures["notes"][-2:] == [
        "stopped is not complete; it has 2 of 4 epochs.",
        "Selected with fewer clusters than k_max: division random, seed 0 (on test classes epoch 2, K = 2 of 4).",
    ]
    main(["compare", "stopped"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "on test classes epoch 2, K = 2 of 4" in shown
