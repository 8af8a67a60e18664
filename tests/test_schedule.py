import warnings

import pytest

from divconq.config import Config
from divconq.division.schedule import divides, k_reached, warn_if_too_short
from divconq.presets import PRESETS, preset
from divconq.train import train


def arguments(config):
    division = config.division
    return config.optimisation.epochs, division.strategy, division.k_max, division.divide_every


@pytest.mark.parametrize(
    ("settings", "k"),
    [
        ({"k_max": 1}, 1),
        ({"k_max": 4, "epochs": 20}, 2),
        ({"k_max": 4, "epochs": 21}, 4),
        ({"k_max": 4, "epochs": 10}, 1),
        ({"k_max": 8, "epochs": 30, "division": "random"}, 4),
        ({"k_max": 8, "epochs": 1, "division": "flat"}, 8),
    ],
)
def test_clusters_double_with_every_division(settings, k):
    config = Config.of(divide_every=10, **settings)
    assert k_reached(*arguments(config)) == k
    epochs, *division = arguments(config)
    assert any(divides(epoch, *division) for epoch in range(epochs)) == (k > 1)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_get_to_all_their_clusters(name):
    with warnings.catch_warnings(action="error"):
        warn_if_too_short(*arguments(preset(name)))


@pytest.mark.parametrize("division", ["progressive", "random"])
def test_a_run_goes_on_where_more_clusters_would_have_no_positives(tiny, tmp_path, division, monkeypatch):
    """48 images of 8 classes hardly fill one of 32 clusters with two classes of two images each; here, none."""
    monkeypatch.setattr("divconq.training.setup.fit_k_max", lambda config, *_: config)  # it refuses at once
    config = tiny.replace(
        k_max=32, epochs=7, divide_every=1, division=division, masks="learned", singletons="keep", seed=2
    )
    with pytest.warns(UserWarning, match="would leave no usable cluster"):
        log = train(config, tmp_path / "run")
    assert len(log) == 7
    assert log[-1]["k"] < 32


def test_a_run_says_at_once_that_it_is_too_short(tiny, tmp_path):
    config = tiny.replace(epochs=2, divide_every=1, k_max=4)
    said = "K = 2 of k_max = 4, since it divides every 1 of its 2 epochs; raise --epochs above 2, or lower"
    with pytest.warns(UserWarning, match=said):
        log = train(config, tmp_path / "run")
    assert log[-1]["k"] == 2
