"""``docs/method.md`` names flags that exist, and every value of the authors' presets."""

import re
from pathlib import Path

import pytest

from divconq.config import PLACES, differences
from divconq.losses import LOSSES
from divconq.losses.construction import accepted_arguments
from divconq.presets import PRESETS, preset

PAGE = (Path(__file__).parent.parent / "docs" / "method.md").read_text()
FLAGS = set(re.findall(r"--([a-z][\w.-]*)", PAGE))
NOT_SETTINGS = {"out"}


def test_every_flag_is_a_setting_or_an_argument_of_a_loss():
    arguments = {name for loss in LOSSES.values() for name in accepted_arguments(loss)}
    for flag in FLAGS - NOT_SETTINGS:
        prefix, _, argument = flag.partition(".")
        assert argument in arguments if prefix == "loss" and argument else flag.replace("-", "_") in PLACES, (
            flag
        )


@pytest.mark.parametrize("name", ["cub", "cars", "inshop", "sop", "vehicleid"])
def test_every_value_of_the_authors_is_on_the_page(name):
    paper = preset("cub-paper" if name == "cub" else name)
    changed = differences(preset(f"{name}-authors"), paper)
    assert len(changed) > 5
    for setting in changed.keys() - {"loss_args"}:
        assert setting.replace("_", "-") in FLAGS, setting
    assert {f"loss.{argument}" for argument in preset(f"{name}-authors").loss.args} <= FLAGS


def test_every_benchmark_preset_is_named():
    assert {name for name in PRESETS if name not in ("demo", "omniglot", "photos")} <= set(
        re.findall(r"`([\w-]+)`", PAGE)
    )


def test_every_row_of_the_table_has_five_cells():
    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    assert len(rows) > 30
    assert {line.count("|") for line in rows} == {6}
