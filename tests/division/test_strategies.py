import warnings
from itertools import pairwise

import jaxtyping
import pytest
import torch

from divconq.division import DIVISIONS, Partition, bisect, divide, kmeans, match, usable_clusters

N, CLASSES, K_MAX = 320, 20, 8


def images(seed=0):
    """Return embeddings clustered by class, and classes in five groups of different sizes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(N) % CLASSES
    centres = torch.randn(CLASSES, 6, generator=generator)
    x = centres[labels] + 0.7 * torch.randn(N, 6, generator=generator)
    groups = torch.tensor([7, 7, 7, 7, 7, 7, 7, 7, 3, 3, 3, 3, 3, 9, 9, 9, 1, 1, 4, 4])[labels]
    return x, labels, groups


def successive(strategy, calls=5, k_max=K_MAX, seed=0):
    x, labels, groups = images()
    given = x if DIVISIONS[strategy].needs_embeddings else None
    partitions = [Partition.whole(N)]
    for call in range(calls):
        step = divide(strategy, given, partitions[-1], labels, k_max=k_max, seed=seed + call, groups=groups)
        partitions.append(step)
    return partitions


def usable_by_hand(clusters, labels, k):
    answer = []
    for cluster in range(k):
        held = [int(y) for y, c in zip(labels, clusters, strict=True) if int(c) == cluster]
        answer.append(sum(held.count(y) >= 2 for y in set(held)) >= 2)
    return answer


def test_usable_clusters_equal_naive_loop():
    generator = torch.Generator().manual_seed(0)
    found = set()
    for k in (1, 2, 4, 8, 16):
        clusters = torch.randint(k, (40,), generator=generator)
        labels = 100 * torch.randint(9, (40,), generator=generator) - 300
        answer = usable_clusters(clusters, labels, k).tolist()
        assert answer == usable_by_hand(clusters, labels, k)
        found |= set(answer)
    assert found == {True, False}
    nothing = torch.zeros(0, dtype=torch.int64)
    assert usable_clusters(nothing, nothing, 2).tolist() == [False, False]


@pytest.mark.parametrize("strategy", ["progressive", "random", "random-again", "labels"])
def test_k_doubles_at_every_call_up_to_k_max(strategy):
    assert [p.k for p in successive(strategy)] == [1, 2, 4, 8, 8, 8]


def test_flat_starts_with_k_max_clusters():
    assert [p.k for p in successive("flat", calls=2)] == [1, 8, 8]


@pytest.mark.parametrize("strategy", ["random", "labels"])
def test_children_stay_inside_their_parents(strategy):
    partitions = successive(strategy)
    for parent, child in pairwise(partitions[:4]):
        assert torch.equal(child.parent().clusters, parent.clusters)
    for settled in partitions[4:]:
        assert torch.equal(settled.clusters, partitions[3].clusters)


def test_random_halves_are_equal_and_depend_on_seed():
    first, other = successive("random"), successive("random", seed=50)
    for partition in first:
        assert int(partition.sizes().max()) - int(partition.sizes().min()) <= 1
    assert not torch.equal(first[1].clusters, other[1].clusters)


def test_random_halves_of_odd_clusters_differ_by_one():
    halves = divide("random", None, Partition.whole(7), torch.zeros(7).long(), k_max=4, seed=0)
    quarters = divide("random", None, halves, torch.zeros(7).long(), k_max=4, seed=0)
    assert sorted(halves.sizes().tolist()) == [3, 4]
    assert sorted(quarters.sizes().tolist()) == [1, 2, 2, 2]


def test_random_again_is_drawn_anew_at_every_division():
    partitions = successive("random-again")
    for partition in partitions:
        assert int(partition.sizes().max()) - int(partition.sizes().min()) <= 1
    for parent, child in pairwise(partitions[1:4]):
        assert not torch.equal(child.parent().clusters, parent.clusters)
        moved = (child.parent().clusters != parent.clusters).double().mean()
        assert abs(float(moved) - (1 - 1 / parent.k)) < 0.1, "as many as chance moves"
    for old, new in pairwise(partitions[3:]):
        assert abs(float((old.clusters != new.clusters).double().mean()) - 7 / 8) < 0.1, "at K_max too"
    assert not torch.equal(partitions[1].clusters, successive("random-again", seed=50)[1].clusters)


def test_random_again_gives_every_image_every_cluster_equally_often():
    count = torch.zeros(10, 4)
    for seed in range(2000):
        drawn = divide("random-again", None, Partition(torch.arange(10) % 4, 4), torch.zeros(10).long(),
                       k_max=4, seed=seed)  # fmt: skip
        assert drawn.sizes().tolist() == [3, 3, 2, 2]
        count += torch.nn.functional.one_hot(drawn.clusters, 4) / 2000
    torch.testing.assert_close(count, torch.tensor([[0.3, 0.3, 0.2, 0.2]] * 10), rtol=0, atol=0.05)


def test_random_again_of_fewer_clusters_than_it_may_have():
    labels = torch.zeros(9).long()
    four = divide("random-again", None, Partition(torch.arange(9) % 2, 2), labels, k_max=8, seed=0)
    assert (four.k, sorted(four.sizes().tolist())) == (4, [2, 2, 2, 3])


def test_progressive_is_recluster_match_bisect():
    x, labels, _ = images()
    whole = Partition.whole(N)
    two = divide("progressive", x, whole, labels, k_max=4, seed=3)
    assert torch.equal(two.clusters, bisect(x, whole.clusters, 1, seed=3))
    four = divide("progressive", x, two, labels, k_max=4, seed=4)
    reclustered = match(kmeans(x, 2, seed=4), two.clusters, 2)
    assert torch.equal(four.clusters, bisect(x, reclustered, 2, seed=4))
    assert torch.equal(four.parent().clusters, reclustered)
    again = divide("progressive", x, four, labels, k_max=4, seed=5)
    assert torch.equal(again.clusters, match(kmeans(x, 4, seed=5), four.clusters, 4))


def test_flat_matches_old_clusters():
    x, labels, _ = images()
    clusters = kmeans(x, 4, seed=1)
    assert bool(usable_clusters(clusters, labels, 4).all())
    first = divide("flat", x, Partition.whole(N), labels, k_max=4, seed=1)
    assert torch.equal(first.clusters, clusters)
    renamed = Partition((first.clusters + 1) % 4, 4)
    again = divide("flat", x, renamed, labels, k_max=4, seed=1)
    assert torch.equal(again.clusters, renamed.clusters)


@pytest.mark.parametrize("gone", [(0,), (2,), (1, 3)])
def test_super_categories_accept_gaps_in_group_numbers(gone):
    """Whole groups may be held out or dropped; the remaining groups keep their numbers, with gaps."""
    generator = torch.Generator().manual_seed(1)
    group_of_class = torch.tensor([0, 0, 1, 1, 1, 2, 3, 3, 4, 4])
    labels = torch.randint(len(group_of_class), (200,), generator=generator)
    labels = labels[~torch.isin(group_of_class[labels], torch.tensor(gone))]
    with_gaps = group_of_class[labels]
    left = sorted({int(group) for group in with_gaps})
    contiguous = torch.tensor([left.index(int(group)) for group in with_gaps])
    assert not torch.equal(with_gaps, contiguous)
    one = other = Partition.whole(len(labels))
    most = 4 if gone == (1, 3) else 8
    for k in (2, 4, 8):
        one = divide("labels", None, one, labels, k_max=8, seed=0, groups=with_gaps)
        other = divide("labels", None, other, labels, k_max=8, seed=0, groups=contiguous)
        assert torch.equal(one.clusters, other.clusters)
        assert bool((one.sizes() > 0).all())
        assert one.k == min(k, most), "five classes cannot fill eight clusters"
    shifted = divide(
        "labels", None, Partition.whole(len(labels)), labels, k_max=8, seed=0, groups=with_gaps - 9
    )
    assert torch.equal(shifted.clusters, one.clusters // (one.k // 2))


def test_super_categories_split_groups_and_classes_last():
    _, labels, groups = images()
    halves, quarters, eighths = successive("labels")[1:4]
    for partition, units in ((halves, groups), (quarters, labels), (eighths, labels)):
        for unit in units.unique():
            assert len(partition.clusters[units == unit].unique()) == 1
    # Groups of 128, 80, 48, 32, 32 images, largest first to the lighter side: 128 + 32 against 80 + 48 + 32.
    assert halves.sizes().tolist() == [160, 160]
    assert set(groups[halves.clusters == 0].tolist()) == {7, 1}


def test_super_categories_split_single_class_into_equal_halves():
    labels, groups = torch.zeros(10).long(), torch.full((10,), 5)
    partition = Partition.whole(10)
    for sizes in ([5, 5], [3, 2, 3, 2], [2, 1, 1, 1, 2, 1, 1, 1]):
        partition = divide("labels", None, partition, labels, k_max=8, seed=0, groups=groups)
        assert partition.sizes().tolist() == sizes


def test_super_categories_of_one_image_give_empty_clusters():
    groups = torch.tensor([0, 1, 1, 1, 1])
    partition = divide("labels", None, Partition.whole(5), groups, k_max=4, seed=0, groups=groups)
    partition = divide("labels", None, partition, groups, k_max=4, seed=0, groups=groups)
    assert partition.sizes().tolist() == [2, 2, 1, 0]


@pytest.mark.parametrize("strategy", list(DIVISIONS))
def test_divide_is_deterministic(strategy):
    torch.manual_seed(1)
    first = successive(strategy, calls=3)
    torch.manual_seed(2)
    for a, b in zip(first, successive(strategy, calls=3), strict=True):
        assert torch.equal(a.clusters, b.clusters)


@pytest.mark.parametrize("strategy", ["progressive", "flat"])
def test_clustering_is_repeated_until_usable(strategy, monkeypatch):
    """Only seeds from 12 on give two usable clusters."""
    seeds = []

    def clustering(x, k, seed=0, iterations=100):
        seeds.append(seed)
        return torch.arange(len(x)) % k if seed >= 12 else torch.zeros(len(x), dtype=torch.int64)

    for module in ("bisection", "flat"):
        monkeypatch.setattr(f"divconq.division.{module}.kmeans", clustering)
    x, labels = torch.arange(16.0)[:, None], torch.arange(16) // 4
    divided = divide(strategy, x, Partition.whole(16), labels, k_max=2, seed=5)
    assert divided.clusters.tolist() == [0, 1] * 8
    assert seeds[-8:] == list(range(5, 13))


@pytest.mark.parametrize("strategy", ["progressive", "flat"])
def test_a_division_without_usable_clusters_keeps_the_partition(strategy):
    """With four classes of two images at two points, two clusters are usable and four are not."""
    labels = torch.arange(4).repeat_interleave(2)
    x = torch.tensor([0.0, 1.0, 9.0, 10.0])[labels, None]
    partition = Partition.whole(8)
    if strategy == "progressive":
        partition = divide("progressive", x, partition, labels, k_max=4, seed=0)
        assert bool(usable_clusters(partition.clusters, labels, 2).all())
    with pytest.warns(
        UserWarning, match=r"into 4 clusters would leave no usable cluster .* K = . is kept"
    ) as caught:
        kept = divide(strategy, x, partition, labels, k_max=4, seed=0)
    assert len(caught) == 1
    assert kept is partition


def test_result_with_most_usable_clusters_is_kept(monkeypatch):
    """The seeds give 0, 1, 1, 0, ... usable clusters; the first result with one is kept."""
    answers = {5: [0, 1] * 4, 6: [0, 0, 0, 0, 0, 0, 1, 1], 7: [1, 1, 1, 1, 1, 1, 0, 0]}

    def clustering(x, k, seed=0, iterations=100):
        return torch.tensor(answers.get(seed, [0, 1] * 4))

    monkeypatch.setattr("divconq.division.flat.kmeans", clustering)
    labels = torch.arange(4).repeat_interleave(2)
    with pytest.warns(UserWarning, match="1 of 2 clusters are degenerate"):
        divided = divide("flat", torch.ones(8, 1), Partition.whole(8), labels, k_max=2, seed=5)
    assert divided.clusters.tolist() == answers[6]


@pytest.mark.parametrize("strategy", ["progressive", "flat"])
@pytest.mark.parametrize("n", [8, 9, 40])
def test_collapsed_embeddings_can_be_divided(strategy, n):
    labels, partition = torch.arange(n) // 2, Partition.whole(n)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for call in range(4):
            partition = divide(strategy, torch.ones(n, 4), partition, labels, k_max=8, seed=call)
    assert partition.k == (8 if n == 40 else 2 if strategy == "progressive" else 1), (
        "as far as there are classes"
    )
    assert int(partition.sizes().min()) > 0


def test_random_and_labels_do_not_warn():
    labels = torch.arange(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for strategy in ("random", "random-again", "labels"):
            divide(strategy, None, Partition.whole(4), labels, k_max=4, seed=0, groups=labels)


def test_errors(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # so that our own errors are reached
    x, labels, groups = images()
    whole = Partition.whole(N)

    def refused(message, strategy="progressive", x=x, partition=whole, labels=labels, k_max=4, groups=groups):
        with pytest.raises(ValueError, match=message):
            divide(strategy, x, partition, labels, k_max=k_max, seed=0, groups=groups)

    refused(
        r"division must be one of progressive, flat, .*, got 'progresive'; did you mean 'progressive'\?",
        strategy="progresive",
    )
    refused("division must be one of .* got 'zzz'", strategy="zzz")
    refused("k_max must be a power of two, got 6; use 4 or 8", k_max=6)
    refused("k_max must be at most the number of images, got 512 for 320", k_max=512)
    refused("the partition already has 8 clusters; use k_max 8 or more", partition=Partition(labels % 8, 8))
    refused("needs embeddings, got x = None", x=None)
    refused("needs super-categories, got groups = None", strategy="labels", groups=None)
    refused("x must have one row for each of the 320 images, got 3", x=x[:3])
    refused("labels must have one row for each of the 320 images, got 3", labels=labels[:3])
    refused("groups must have one row for each of the 320 images, got 3", groups=groups[:3])
    x = x.clone()
    x[5] = float("nan")
    refused("NaN or infinity in 1 of 320 rows", x=x)
