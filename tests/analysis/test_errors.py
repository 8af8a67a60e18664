import math

import pytest
import torch

from divconq.analysis import (
    confused_pairs,
    first_positive_ranks,
    label_errors,
    near_duplicates,
    nearest_other,
    neighbours,
    worst_queries,
)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def classes(n, c, seed=0):
    return torch.randint(c, (n,), generator=torch.Generator().manual_seed(seed))


def rank_by_hand(x, labels, i, y, names, skip):
    order = sorted((float((x[i] - y[j]).double().square().sum()), j) for j in range(len(y)) if j != skip)
    hits = [rank for rank, (_, j) in enumerate(order, 1) if names[j] == labels[i]]
    return hits[0] if hits else 0


@pytest.mark.parametrize("budget", [1, 5000, 1 << 30])
@pytest.mark.parametrize("with_gallery", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_first_positive_ranks_match_a_sort(budget, with_gallery, tied):
    x, labels = draw(40, 3), classes(40, 9) * 3
    y, names = (draw(25, 3, seed=1), classes(25, 11, seed=2) * 3) if with_gallery else (x, labels)
    if tied:  # integers: many distances are equal
        x, y = x.round(), y.round()
    gallery = {"gallery": y, "gallery_labels": names} if with_gallery else {}
    found = first_positive_ranks(x, labels, **gallery, budget=budget)
    skip = [None if with_gallery else i for i in range(40)]
    assert found.tolist() == [rank_by_hand(x, labels, i, y, names, skip[i]) for i in range(40)]
    assert found.max() > 3
    for k in (1, 5):
        ranking = neighbours(x, k, gallery=y if with_gallery else None)
        assert torch.equal(first_positive_ranks(x, labels, ranking, **gallery, budget=budget), found)


@pytest.mark.parametrize("n", [0, 1, 5])
def test_ranks_are_zero_without_positives(n):
    assert first_positive_ranks(draw(n, 3), torch.arange(n)).tolist() == [0] * n


def test_ranks_with_one_class_or_ten_thousand():
    assert first_positive_ranks(draw(20, 3), torch.zeros(20).long()).tolist() == [1] * 20
    x = draw(2000, 4).repeat(2, 1) * 10
    labels = (torch.arange(2000) * 5).repeat(2)
    assert first_positive_ranks(x + 1e-3 * draw(4000, 4, seed=1), labels).tolist() == [1] * 4000


def test_a_gallery_needs_its_labels():
    with pytest.raises(ValueError, match="gallery and gallery_labels go together"):
        first_positive_ranks(draw(3, 2), torch.zeros(3).long(), gallery=draw(3, 2))


def test_the_worst_queries_come_first():
    ranks = torch.tensor([3, 1, 0, 9, 3, 2])
    assert worst_queries(ranks).tolist() == [3, 0, 4, 5]
    assert worst_queries(ranks, top=2).tolist() == [3, 0]
    assert worst_queries(torch.tensor([1, 0])).tolist() == []
    assert worst_queries(torch.empty(0).long()).tolist() == []


@pytest.mark.parametrize("with_gallery", [False, True])
def test_confused_pairs_are_counted_in_both_directions(with_gallery):
    x, labels = draw(80, 3), classes(80, 6) * 4
    y, names = (draw(30, 3, seed=1), classes(30, 8, seed=2) * 4) if with_gallery else (None, None)
    ranking = neighbours(x, 2, gallery=y)
    counts = {}
    for i in range(80):
        other = int((labels if names is None else names)[ranking[i, 0]])
        if other != labels[i]:
            pair = tuple(sorted((int(labels[i]), other)))
            counts[pair] = counts.get(pair, 0) + 1
    found = confused_pairs(ranking, labels, names, top=100)
    assert {(pair.first, pair.second): pair.count for pair in found} == counts
    assert [pair.count for pair in found] == sorted(counts.values(), reverse=True)
    for pair in found:
        assert pair.share == pair.count / sum(label in (pair.first, pair.second) for label in labels.tolist())
    assert confused_pairs(ranking, labels, names, top=3) == found[:3]


def test_no_pairs_with_one_class_or_one_image():
    x = draw(9, 2)
    assert confused_pairs(neighbours(x, 1), torch.zeros(9).long()) == []
    assert confused_pairs(neighbours(x[:1], 1), torch.zeros(1).long()) == []


@pytest.mark.parametrize("agreement", [0.4, 0.8, 1.0])
def test_label_errors_match_a_count_of_votes(agreement):
    labels = classes(100, 4)
    x = 1.5 * torch.eye(4)[labels] + 0.4 * draw(100, 4)
    labels[:5] = (labels[:5] + 1) % 4
    ranking, expected = neighbours(x, 5), []
    for i in range(100):
        votes = [int(labels[j]) for j in ranking[i]]
        leader = max(votes, key=votes.count)  # ties go to the first
        if leader != labels[i] and votes.count(leader) >= agreement * 5:
            score = (votes.count(leader) - votes.count(int(labels[i]))) / 5
            expected.append((-score, i, int(labels[i]), leader))
    found = label_errors(ranking, labels, agreement)
    assert [(-e.score, e.image, e.label, e.suggested) for e in found] == sorted(expected)
    assert {e.image for e in found} >= ({0, 1, 2, 3, 4} if agreement < 1 else set())


def test_label_errors_do_not_depend_on_the_block_size(monkeypatch):
    ranking, labels = neighbours(draw(70, 3), 4), classes(70, 3)
    whole = label_errors(ranking, labels, 0.5)
    monkeypatch.setattr("divconq.analysis.measures.errors.VOTES", 100)
    assert len(whole) > 3
    assert label_errors(ranking, labels, 0.5) == whole


def test_no_label_errors_without_votes():
    assert label_errors(neighbours(draw(1, 2), 5), torch.zeros(1).long()) == []
    assert label_errors(neighbours(draw(9, 2), 5), torch.zeros(9).long()) == []
    assert label_errors(neighbours(draw(9, 2), 5), torch.arange(9)) == []


def test_near_duplicates_across_groups():
    x, marks = draw(60, 4), classes(60, 3)
    x[50:55] = x[:5] + 1e-4 * draw(5, 4, seed=1)
    x[55] = x[6]
    marks[:7], marks[50:56] = 0, 1
    index, distance = nearest_other(x, marks)
    found = near_duplicates(index, distance, fraction=0.1)
    threshold = 0.1 * sorted(distance.tolist())[29]
    assert found.threshold == pytest.approx(threshold)
    expected = set()
    for i in range(60):
        gaps = {j: float((x[i] - x[j]).norm()) for j in range(60) if marks[j] != marks[i]}
        if gaps and min(gaps.values()) <= threshold:
            expected.add(tuple(sorted((i, min(gaps, key=gaps.get)))))
    assert {tuple(pair) for pair in found.pairs.tolist()} == expected
    assert len(expected) >= 6
    assert found.pairs[0].tolist() == [6, 55]
    assert found.distances.tolist() == sorted(found.distances.tolist())
    for (i, j), gaps in zip(found.pairs.tolist(), found.distances.tolist(), strict=True):
        assert gaps == pytest.approx(float((x[i] - x[j]).norm()))


def test_copies_are_found_if_all_images_are_copies():
    x, marks = torch.ones(4, 3), torch.tensor([0, 0, 1, 1])
    found = near_duplicates(*nearest_other(x, marks))
    assert found.threshold == 0
    assert {image for pair in found.pairs.tolist() for image in pair} == {0, 1, 2, 3}


@pytest.mark.parametrize("n", [0, 1, 5])
def test_no_duplicates_within_one_group(n):
    found = near_duplicates(*nearest_other(torch.ones(n, 3), torch.zeros(n).long()))
    assert found.pairs.shape == (0, 2)
    assert math.isnan(found.threshold)
