import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divconq.experiments.statistics import last_epoch, paired_difference, summarise

SCORES = st.lists(st.none() | st.sampled_from([0.1, 0.2, 0.3, 0.4]), max_size=8)


@given(SCORES)
def test_the_last_epoch_against_a_plain_loop(scores):
    last = None
    for position, score in enumerate(scores):
        if score is not None:
            last = position
    assert last_epoch(scores) == last


@pytest.mark.parametrize("n", [2, 3, 5, 30])
def test_mean_deviation_and_interval_against_numpy_and_scipy(n):
    from scipy import stats

    random = np.random.default_rng(n)
    ours, theirs = random.normal(68, 1, n), random.normal(66, 1, n)
    summary = summarise(ours.tolist())
    assert summary.n == n
    assert summary.mean == pytest.approx(np.mean(ours))
    assert summary.deviation == pytest.approx(np.std(ours, ddof=1))
    difference = paired_difference(ours.tolist(), theirs.tolist())
    interval = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert difference.mean == pytest.approx(np.mean(ours - theirs))
    assert (difference.low, difference.high) == pytest.approx((interval.low, interval.high))


def test_pairs_matter_and_not_only_means():
    by_seed = [60.0, 65.0, 70.0]
    paired = paired_difference([value + 1 for value in by_seed], by_seed)
    assert (paired.low, paired.high) == pytest.approx((1.0, 1.0))
    shuffled = paired_difference([71.0, 61.0, 66.0], by_seed)
    assert shuffled.mean == pytest.approx(paired.mean)
    assert shuffled.low < 0 < shuffled.high


def test_the_interval_holds_the_truth_in_95_of_100_cases():
    random = np.random.default_rng(0)
    draws = random.normal(1.5, 2.0, (2000, 4))
    held = 0
    for draw in draws:
        difference = paired_difference(draw.tolist(), [0.0] * 4)
        held += difference.low <= 1.5 <= difference.high
    assert held / len(draws) == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / len(draws)))


def test_one_seed_has_no_deviation_and_no_interval():
    assert summarise([66.0]).deviation is None
    assert (paired_difference([67.0], [66.0]).low, paired_difference([67.0], [66.0]).mean) == (None, 1.0)
    with pytest.raises(ValueError, match="no values"):
        summarise([])
    with pytest.raises(ValueError, match="pairs are needed, got 2 and 1 values"):
        paired_difference([1.0, 2.0], [1.0])
