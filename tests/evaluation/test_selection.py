import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from divconq.evaluation.selection import best_epoch, fewer_clusters, rank_epoch

SCORES = st.none() | st.sampled_from([0.1, 0.2, 0.3, math.nan])
KS = st.none() | st.sampled_from([1, 2, 4, 8])


def best_by_hand(scores, ks):
    """First the largest K with a score, then the first of the highest scores at this K."""
    seen = [
        (i, score, k or 0) for i, (score, k) in enumerate(zip(scores, ks, strict=True)) if score is not None
    ]
    numbers = [one for one in seen if not math.isnan(one[1])]
    if not numbers:
        return seen[0][0] if seen else None
    largest = max(k for _, _, k in numbers)
    compete = [(i, score) for i, score, k in numbers if k == largest]
    highest = max(score for _, score in compete)
    return next(i for i, score in compete if score == highest)


@given(st.lists(st.tuples(SCORES, KS), max_size=8))
def test_the_best_epoch_against_a_plain_search(epochs):
    scores, ks = [score for score, _ in epochs], [k for _, k in epochs]
    assert best_epoch(scores, ks) == best_by_hand(scores, ks)
    assert best_epoch(scores) == best_by_hand(scores, [None] * len(scores))


@given(st.lists(st.tuples(SCORES, KS), max_size=8))
def test_epochs_in_turn_give_the_same_as_all_at_once(epochs):
    """The recorder sees one epoch after the other."""
    best, kept = rank_epoch(math.nan, None), None
    for position, (score, k) in enumerate(epochs):
        if score is not None and rank_epoch(score, k) > best:
            best, kept = rank_epoch(score, k), position
    found = best_epoch(*([value[part] for value in epochs] for part in (0, 1)))
    assert kept == (None if found is None or math.isnan(epochs[found][0]) else found)


@pytest.mark.parametrize(
    ("scores", "ks", "best"),
    [
        ([0.5, 0.9, 0.6, 0.7], [1, 1, 1, 1], 1),  # k_max 1
        ([0.5, 0.9, 0.6, 0.7], [1, 1, 2, 2], 3),  # progressive
        ([0.5, 0.9, 0.6, 0.7], [4, 4, 4, 4], 1),  # flat
        ([0.5, 0.9, 0.6], [1, 1, 2], 2),  # stopped after the first division
        ([0.5, 0.9], [1, 1], 1),  # stopped before it
        ([0.5, 0.9, None, None], [1, 1, 2, 2], 1),  # not evaluated since
        ([0.5, 0.9, 0.6], [], 1),  # an old log
    ],
)
def test_kinds_of_runs(scores, ks, best):
    assert best_epoch(scores, ks) == best


@pytest.mark.parametrize("k", [math.nan, math.inf, None])
def test_a_k_that_is_no_number_counts_as_zero(k):
    assert rank_epoch(0.9, k) < rank_epoch(0.1, 1)
    assert fewer_clusters(k, 4) == ""


def test_lists_of_other_lengths_are_a_mistake():
    with pytest.raises(ValueError, match="zip"):
        best_epoch([0.1, 0.2], [1])
