from itertools import product

import pytest
import torch

from divconq.division.usable import most_clusters, usable_clusters

COUNTS = [
    (2, 2),
    (3, 2),
    (4, 4),
    (5, 3),
    (4, 2, 2),
    (6, 2),
    (3, 3, 2),
    (2, 2, 2, 2),
    (1, 4, 3),
    (8,),
    (1, 1, 1),
]


def labels_of(counts):
    return torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))


@pytest.mark.parametrize("counts", COUNTS)
def test_two_clusters_are_possible_if_any_partition_into_two_is_usable(counts):
    labels = labels_of(counts)
    partitions = product(range(2), repeat=len(labels))
    possible = any(bool(usable_clusters(torch.tensor(p), labels, 2).all()) for p in partitions)
    assert most_clusters(labels) == (2 if possible else 1), (
        "with fewer than 16 images, four are never possible"
    )


@pytest.mark.parametrize(
    ("counts", "k"), [((8, 8), 4), ((9, 7), 2), ((4,) * 4, 4), ((3,) * 7, 2), ((2,) * 64, 32)]
)
def test_more_clusters_need_pairs_of_two_classes_each(counts, k):
    assert most_clusters(labels_of(counts)) == k


def test_the_pairs_of_classes_can_be_dealt_to_that_many_clusters():
    labels = labels_of((8, 4, 4))
    order = (
        torch.arange(len(labels)) // 2 % most_clusters(labels)
    )  # pair after pair, to one cluster after another
    assert usable_clusters(order, labels, 4).all()
