import pytest
import torch

from divconq.division import Partition
from divconq.division.partition import check_power_of_two


def test_sizes_include_empty_clusters():
    clusters = torch.tensor([3, 3, 0, 5, 3])
    assert Partition(clusters, 8).sizes().tolist() == [sum(int(c) == i for c in clusters) for i in range(8)]


def test_repeated_parent_gives_one_cluster():
    partition = Partition(torch.tensor([0, 1, 2, 3, 4, 5, 6, 7]), 8)
    assert partition.parent().clusters.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    root = partition.parent().parent().parent()
    assert root.k == 1
    assert torch.equal(root.clusters, Partition.whole(8).clusters)
    with pytest.raises(ValueError, match="no parent"):
        root.parent()


@pytest.mark.parametrize("cluster", [-1, 4])
def test_cluster_out_of_range_is_refused(cluster):
    with pytest.raises(ValueError, match="clusters must be from 0 to 3 for k = 4"):
        Partition(torch.tensor([0, cluster]), 4)


@pytest.mark.parametrize(
    ("k", "advice"),
    [(6, "use 4 or 8"), (3, "use 2 or 4"), (0, "use 1 or 2"), (-4, "use 1 or 2"), (33, "use 32 or 64")],
)
def test_k_must_be_a_power_of_two(k, advice):
    with pytest.raises(ValueError, match=f"^k must be a power of two, got {k}; {advice}$"):
        Partition(torch.zeros(1, dtype=torch.int64), k)


def test_powers_of_two_are_accepted():
    for power in range(12):
        check_power_of_two("k", 2**power)


def test_clusters_must_be_on_the_cpu():
    with pytest.raises(ValueError, match=r"clusters\.cpu\(\)"):
        Partition(torch.zeros(1, dtype=torch.int64, device="meta"), 1)
