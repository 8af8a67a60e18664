import jaxtyping
import pytest
import torch

from divconq.division import bisect
from divconq.division.bisection import halve, members_of


def random_points(n, d, seed):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("k", [1, 2, 8, 32])
def test_children_keep_the_number_of_the_parent(k):
    x = random_points(200, 5, k)
    clusters = torch.randint(k, (200,), generator=torch.Generator().manual_seed(k))
    children = bisect(x, clusters, k)
    assert torch.equal(children // 2, clusters)
    sizes = torch.bincount(clusters, minlength=k)
    child_sizes = torch.bincount(children, minlength=2 * k).view(k, 2)
    assert bool((child_sizes[sizes >= 2] > 0).all())


def test_bisect_separates_two_groups_per_cluster():
    x = torch.tensor([[0.0], [0.1], [5.0], [5.1], [100.0], [100.1], [107.0]])
    children = bisect(x, torch.tensor([0, 0, 0, 0, 1, 1, 1]), 2).tolist()
    assert children[0] == children[1] != children[2] == children[3]
    assert children[4] == children[5] != children[6]


def test_identical_points_are_split_into_equal_halves():
    children = bisect(torch.ones(7, 3), torch.tensor([0, 1, 1, 1, 1, 1, 0]), 2)
    assert torch.bincount(children, minlength=4).tolist() == [1, 1, 3, 2]


def test_bisect_of_clusters_with_one_or_no_point():
    children = bisect(random_points(3, 2, 0), torch.tensor([1, 2, 2]), 4)
    assert int(children[0]) == 2
    assert sorted(children[1:].tolist()) == [4, 5]


def test_bisect_is_deterministic():
    x, clusters = random_points(300, 8, 1), torch.arange(300) % 4
    assert torch.equal(bisect(x, clusters, 4, seed=3), bisect(x, clusters, 4, seed=3))


def test_halve_separates_one_distinct_point():
    x = torch.ones(50, 2)
    x[17] += 1
    side = halve(x)
    assert int(side[17]) != int(side[0])
    assert sorted(torch.bincount(side).tolist()) == [1, 49]


def test_members_of_equals_naive_search():
    clusters = torch.randint(5, (40,), generator=torch.Generator().manual_seed(0))
    for c, members in enumerate(members_of(clusters, 6)):
        assert members.tolist() == [i for i in range(40) if int(clusters[i]) == c]


def test_errors(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # so that our own errors are reached
    x = torch.ones(3, 2)
    with pytest.raises(ValueError, match="got 2 clusters for 3 points"):
        bisect(x, torch.tensor([0, 0]), 1)
    with pytest.raises(ValueError, match="clusters must be from 0 to 0"):
        bisect(x, torch.tensor([0, 0, 1]), 1)
    with pytest.raises(ValueError, match="NaN or infinity in 1 of 3 rows"):
        bisect(torch.tensor([[0.0], [float("inf")], [1.0]]), torch.tensor([0, 0, 0]), 1)


def test_split_is_repeated_until_usable(monkeypatch):
    """Seeds below 7 give a side with two images of one class, which is unusable."""
    seeds = []

    def sides(x, k, seed=0, iterations=100):
        seeds.append(seed)
        return torch.tensor([0, 0, 1, 1] * 2) if seed >= 7 else torch.tensor([0, 0, 0, 0, 0, 0, 1, 1])

    monkeypatch.setattr("divconq.division.bisection.kmeans", sides)
    x, labels = torch.arange(8.0)[:, None], torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])
    children = bisect(x, torch.zeros(8).long(), 1, labels, seed=5)
    assert children.tolist() == [0, 0, 1, 1] * 2
    assert seeds == [5, 6, 7]
