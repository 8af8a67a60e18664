"""What the chapter on errors lists, checked by hand on made-up embeddings."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from analysis.made_runs import made_subject, nearest_by_hand
from divconq.analysis.chapters.clusters import split_classes
from divconq.analysis.chapters.errors import errors_of
from divconq.analysis.chapters.spaces import space_of
from divconq.analysis.chapters.subspaces import subspaces_of


@pytest.mark.parametrize("gallery", [False, True])
def test_errors_match_plain_loops(gallery):
    sizes = {"train": 30, "test": 60, **({"gallery": 50} if gallery else {})}
    subject = made_subject(sizes, classes=4)
    subject.f["test"][3] = subject.f["train"][7]  # a copy
    points = [("test", i) for i in range(60)] + ([("gallery", i) for i in range(50)] if gallery else [])
    split = "gallery" if gallery else "test"
    x, y = subject.x["test"], subject.x["gallery"] if gallery else None
    labels, theirs = subject.images["test"].labels, subject.images[split].labels
    errors = errors_of(subject)

    rankings = [nearest_by_hand(x, i, y, 200) for i in range(60)]
    ranks = [
        1 + next(r for r, j in enumerate(found) if theirs[j] == labels[i]) for i, found in enumerate(rankings)
    ]
    order = sorted((i for i in range(60) if ranks[i] > 1), key=lambda i: (-ranks[i], i))
    assert [(worst.query.index, worst.rank) for worst in errors.worst] == [(i, ranks[i]) for i in order[:12]]
    for worst in errors.worst:
        assert [one.image.index for one in worst.found] == rankings[worst.query.index][:5]
        assert not worst.found[0].right

    for pair in errors.confused:
        query, found = pair.examples
        assert (query.split, found.split) == ("test", split)
        assert found.index == rankings[query.index][0]
        assert {query.label, found.label} == {pair.first, pair.second}
        assert pair.first != pair.second
    assert errors.confused

    every = torch.cat([x, y]) if gallery else x
    every_label = torch.cat([labels, theirs]) if gallery else labels
    near = [nearest_by_hand(every, i, None, 10) for i in range(len(every))]
    for wrong in errors.mislabelled:
        place = points.index((wrong.image.split, wrong.image.index))
        assert [(image.split, image.index) for image in wrong.neighbours] == [
            points[j] for j in near[place][:5]
        ]
        agreeing = [j for j in near[place] if subject.images["test"].names[every_label[j]] == wrong.suggested]
        assert len(agreeing) >= 8
        assert wrong.suggested != wrong.image.label

    across = [pair for pair in errors.duplicates if pair.across == "splits"]
    assert (across[0].first.split, across[0].first.index) == ("test", 3)
    assert (across[0].second.split, across[0].second.index) == ("train", 7)
    assert across[0].distance == pytest.approx(0, abs=1e-3)
    for pair in errors.duplicates:
        assert (pair.second.split == "train") == (pair.across == "splits")
        if pair.across == "classes":
            assert pair.first.label != pair.second.label


def test_wrong_labels_and_copies_in_other_classes_are_found():
    f = F.normalize(torch.eye(2).repeat_interleave(12, 0) + 0.1 * torch.rand(24, 2))
    subject = made_subject({"train": 5, "test": 24}, d=2, classes=2, test=f)
    labels = torch.arange(24) // 12
    labels[4] = 1
    subject.images["test"].labels.copy_(labels)
    f[20] = f[4]
    labels[20] = 0
    subject.images["test"].labels.copy_(labels)
    subject = dataclasses.replace(subject, masks=torch.ones(1, 2))
    errors = errors_of(subject)
    assert (errors.mislabelled[0].image.index, errors.mislabelled[0].suggested) == (4, "class 0")
    pairs = [(pair.first.index, pair.second.index) for pair in errors.duplicates if pair.across == "classes"]
    assert pairs[0] == (4, 20)


def test_ten_thousand_classes():
    subject = made_subject({"train": 12_000, "test": 10_500}, d=8, classes=10_000, noise=0.2)
    subspaces = subspaces_of(subject)
    assert subspaces.queries == 2000
    assert len(split_classes(subject)) == 8
    assert len(errors_of(subject).worst) == 12
    assert space_of(subject).train.images == 12_000
