"""Settings of the margin loss: what its classes can reach, and flags for its beta and alpha."""

import warnings

import pytest

from divconq.cli import main
from divconq.config import Config
from divconq.losses import MarginLoss, TripletLoss
from divconq.losses.spherical_codes import reachable_distance
from divconq.presets import PRESETS, preset
from divconq.runs.folder import Run
from divconq.train import train
from divconq.training.reach import warn_if_unreachable

SMALL = Config.of(dim=64, k_max=4, masks="fixed")  # blocks of 16 dimensions


def warned(loss, config, classes):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        warn_if_unreachable(loss, config, classes=classes)
    return [str(one.message) for one in said]


def test_it_warns_where_the_classes_of_a_cluster_come_too_near():
    assert warned(MarginLoss(), SMALL, classes=128) == [], "32 classes in 16 dimensions reach sqrt(2)"
    (message,) = warned(MarginLoss(), SMALL, classes=400)
    assert message == (
        "the margin loss pushes classes beta + alpha = 1.4 apart, but the 100 classes of a cluster can be at most "
        f"{reachable_distance(100, 16):.3g} apart in a block of 16 dimensions; lower --beta to 1.1 or less, raise "
        "--dim or lower --k-max"
    )
    assert warned(MarginLoss(beta=1.1), SMALL, classes=400) == [], "the remedy helps"


@pytest.mark.parametrize("config", [SMALL.replace(masks="learned"), SMALL.replace(masks="none")])
def test_it_says_nothing_of_masks_that_share_dimensions(config):
    assert warned(MarginLoss(), config, classes=4000) == []


@pytest.mark.parametrize("loss", [MarginLoss(num_classes=9), TripletLoss()])
def test_it_says_nothing_of_a_loss_without_a_fixed_beta(loss):
    assert warned(loss, SMALL, classes=4000) == []


def test_training_warns_once_before_the_first_epoch(tiny, tmp_path):
    config = tiny.replace(masks="fixed", dim=2, k_max=1, epochs=1)
    with pytest.warns(UserWarning, match=r"8 classes of a cluster can be at most 0\.765 apart") as said:
        train(config, tmp_path / "run")
    assert sum("beta + alpha" in str(one.message) for one in said) == 1


def trained_with(tiny, tmp_path, *words, settings=()):
    from test_resume import flags

    main(["train", "--out", str(tmp_path / "run"), *flags(tiny), "--epochs", "1", *words])
    return Run.open(tmp_path / "run").config


def test_beta_and_alpha_are_flags_that_reach_the_loss(tiny, tmp_path, monkeypatch):
    used = []
    real = MarginLoss.forward
    monkeypatch.setattr(
        MarginLoss, "forward", lambda loss, *batch: used.append((loss.alpha, loss.beta)) or real(loss, *batch)
    )
    config = trained_with(tiny, tmp_path, "--beta", "0.9", "--alpha=0.1")
    assert (config.loss.beta, config.loss.alpha, config.loss.args) == (0.9, 0.1, {})
    assert set(used) == {(0.1, 0.9)}


@pytest.mark.parametrize(
    ("words", "beta", "arguments"),
    [
        ([], 0.8, {"sampling_dim": 4}),
        (["--beta", "1"], 1.0, {"sampling_dim": 4}),
        (["--loss.beta", "1"], None, {"sampling_dim": 4, "beta": 1}),
        (["--loss", "multi_similarity"], None, {}),
        (["--loss", "multi_similarity", "--beta", "0.8"], 0.8, {}),
        (["--loss", "margin"], 0.8, {"sampling_dim": 4}),
    ],
)
def test_another_loss_does_not_take_over_the_beta_of_the_preset(
    tiny, tmp_path, monkeypatch, words, beta, arguments
):
    monkeypatch.setitem(
        PRESETS, "demo", preset("demo").replace(loss="margin", beta=0.8, loss_args={"sampling_dim": 4})
    )
    from test_resume import flags

    rest = flags(tiny)
    place = rest.index("--loss")
    rest = ["demo", *rest[:place], *rest[place + 2 :]]
    main(["train", *rest, "--out", str(tmp_path / "run"), "--epochs", "1", *words])
    config = Run.open(tmp_path / "run").config
    assert (config.loss.beta, config.loss.args) == (beta, arguments)


def test_flags_replace_an_argument_of_the_preset(tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(
        PRESETS, "photos", preset("photos").replace(loss_args={"beta": 1.1, "sampling_dim": 4})
    )
    config = trained_with(tiny, tmp_path, "--beta", "0.9")
    assert (config.loss.beta, config.loss.args) == (0.9, {"sampling_dim": 4})
