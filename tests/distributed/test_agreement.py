"""Ranks that were started differently are refused, in one sentence for all of them."""

import functools
import os
import re
import shutil

import pytest

from distributed.ranks import Ranks, needs_gloo, raised_by, run
from divconq.cli import main
from divconq.distributed import rank
from divconq.train import train
from test_resume import flags

pytestmark = needs_gloo

SETTINGS = {
    "lr": 0.25, "seed": 7, "loss": "triplet", "epochs": 3, "batch": 10, "k_max": 4, "dim": 8, "save_steps": 2,
}  # fmt: skip


def train_differently(config, out):
    """Train with one setting or argument of the last rank changed, again and again."""
    differs = rank() == 1
    said = {
        name: raised_by(functools.partial(train, config.replace(**{name: value}) if differs else config, out))
        for name, value in SETTINGS.items()
    }
    said["out"] = raised_by(functools.partial(train, config, out / "other" if differs else out))
    said["resume"] = raised_by(functools.partial(train, config, out, resume=differs))
    several = config.replace(lr=0.25, seed=7) if differs else config
    return said | {"several": raised_by(functools.partial(train, several, out))}


def test_the_setting_and_the_rank_are_named(tiny, tmp_path):
    config, out = tiny.replace(lr=1e-5), tmp_path / "run"
    told = run(2, functools.partial(train_differently, config, out), tmp_path / "ranks")
    assert told[0] == told[1]
    same = "start all ranks with the same command and the same versions"
    for name, value in SETTINGS.items():
        here = config.settings()[name]
        assert told[0][name] == f"ValueError: rank 1 has {name} {value}, rank 0 has {name} {here}; {same}"
    assert told[0]["out"] == f"ValueError: rank 1 has out {out}/other, rank 0 has out {out}; {same}"
    assert told[0]["resume"] == f"ValueError: rank 1 has resume True, rank 0 has resume False; {same}"
    assert told[0]["several"] == (
        f"ValueError: rank 1 has lr 0.25, seed 7, rank 0 has lr 1e-05, seed 0; {same}"
    )
    assert not out.exists()


def train_on_own_data(config, out, datas, moved):
    differs = rank() == 1
    said = {
        name: raised_by(functools.partial(train, config.replace(data=str(data)) if differs else config, out))
        for name, data in datas.items()
    }
    equal = config.replace(data=str(moved), workers=1, cache=False) if differs else config
    return said | {"equal": raised_by(functools.partial(train, equal, out))}


def test_other_data_is_refused_and_the_same_data_elsewhere_is_not(tiny, tmp_path, photos):
    differs = {
        "less": r"(training|test) images 47",
        "renamed": "training classes",
        "changed": "training file sizes",
    }
    datas = {name: shutil.copytree(photos, tmp_path / name) for name in differs}
    moved = shutil.copytree(photos, tmp_path / "moved")
    (datas["less"] / "class03" / "0.png").unlink()
    for folder in datas["renamed"].iterdir():
        folder.rename(folder.with_name(f"b{folder.name}"))
    for file in datas["changed"].rglob("1.png"):
        file.write_bytes(file.with_name("2.png").read_bytes() + b"\0")
    work = functools.partial(train_on_own_data, tiny.replace(epochs=1), tmp_path / "run", datas, moved)
    told = run(2, work, tmp_path / "ranks")
    assert told[0] == told[1]
    for name, difference in differs.items():
        pattern = f"ValueError: rank 1 has .*{difference}.*, rank 0 has .*; give all ranks the same data"
        assert re.match(pattern, told[0][name]), told[0][name]
    assert told[0]["equal"] is None


def command(words):
    """Run the command with the words of this rank."""
    main(words[int(os.environ["RANK"])])


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (["--lr", "0.25"], "rank 1 has lr 0.25, rank 0 has lr 0.01"),
        (["--tensorboard"], "rank 1 has tensorboard True, rank 0 has tensorboard False"),
        (["--out", "elsewhere"], "rank 1 has out elsewhere, rank 0 has out None"),
    ],
)
def test_the_command_ends_with_code_2_on_all_ranks(tiny, tmp_path, monkeypatch, own, message):
    monkeypatch.chdir(tmp_path)
    words = ["train", *flags(tiny, lr=0.01)]
    ranks = Ranks(2, functools.partial(command, [words, [*words, *own]]), tmp_path)
    assert ranks.join() == [2, 2]
    assert f"divconq: error: {message}; start all ranks" in ranks.said[0].read_text()
    assert not (tmp_path / "runs").exists()
