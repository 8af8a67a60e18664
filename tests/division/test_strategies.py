import warnings
from itertools import pairwise

import jaxtyping
import pytest
import torch

from divconq.division import DIVISIONS, NEEDS_EMBEDDINGS, Partition, bisect, divide, kmeans, match, usable

N, CLASSES, K_MAX = 320, 20, 8


def images(seed=0):
    """Embeddings gathered by class, classes in five groups of different sizes."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.arange(N) % CLASSES
    centres = torch.randn(CLASSES, 6, generator=generator)
    x = centres[classes] + 0.7 * torch.randn(N, 6, generator=generator)
    groups = torch.tensor([7, 7, 7, 7, 7, 7, 7, 7, 3, 3, 3, 3, 3, 9, 9, 9, 1, 1, 4, 4])[classes]
    return x, classes, groups


def successive(strategy, calls=5, k_max=K_MAX, seed=0):
    x, classes, groups = images()
    given = x if strategy in NEEDS_EMBEDDINGS else None
    partitions = [Partition.whole(N)]
    for call in range(calls):
        step = divide(strategy, given, partitions[-1], classes, k_max=k_max, seed=seed + call, groups=groups)
        partitions.append(step)
    return partitions


def usable_by_hand(labels, classes, k):
    answer = []
    for cluster in range(k):
        held = [int(y) for y, c in zip(classes, labels, strict=True) if int(c) == cluster]
        answer.append(sum(held.count(y) >= 2 for y in set(held)) >= 2)
    return answer


def test_usable_is_what_plain_loops_find():
    generator = torch.Generator().manual_seed(0)
    found = set()
    for k in (1, 2, 4, 8, 16):
        labels = torch.randint(k, (40,), generator=generator)
        classes = 100 * torch.randint(9, (40,), generator=generator) - 300
        answer = usable(labels, classes, k).tolist()
        assert answer == usable_by_hand(labels, classes, k)
        found |= set(answer)
    assert found == {True, False}
    nothing = torch.zeros(0, dtype=torch.int64)
    assert usable(nothing, nothing, 2).tolist() == [False, False]


@pytest.mark.parametrize("strategy", ["progressive", "random", "labels"])
def test_k_doubles_at_every_call_up_to_k_max(strategy):
    assert [p.k for p in successive(strategy)] == [1, 2, 4, 8, 8, 8]


def test_flat_has_k_max_clusters_at_once():
    assert [p.k for p in successive("flat", calls=2)] == [1, 8, 8]


@pytest.mark.parametrize("strategy", ["random", "labels"])
def test_children_stay_inside_their_parents(strategy):
    partitions = successive(strategy)
    for parent, child in pairwise(partitions[:4]):
        assert torch.equal(child.parent().labels, parent.labels)
    for settled in partitions[4:]:
        assert torch.equal(settled.labels, partitions[3].labels)


def test_random_halves_are_even_and_differ_by_seed():
    first, other = successive("random"), successive("random", seed=50)
    for partition in first:
        assert int(partition.sizes().max()) - int(partition.sizes().min()) <= 1
    assert not torch.equal(first[1].labels, other[1].labels)


def test_random_halves_of_odd_clusters_differ_by_one():
    halves = divide("random", None, Partition.whole(7), torch.zeros(7).long(), k_max=4, seed=0)
    quarters = divide("random", None, halves, torch.zeros(7).long(), k_max=4, seed=0)
    assert sorted(halves.sizes().tolist()) == [3, 4]
    assert sorted(quarters.sizes().tolist()) == [1, 2, 2, 2]


def test_progressive_is_recluster_match_bisect():
    x, classes, _ = images()
    whole = Partition.whole(N)
    two = divide("progressive", x, whole, classes, k_max=4, seed=3)
    assert torch.equal(two.labels, bisect(x, whole.labels, 1, seed=3))
    four = divide("progressive", x, two, classes, k_max=4, seed=4)
    reclustered = match(kmeans(x, 2, seed=4), two.labels, 2)
    assert torch.equal(four.labels, bisect(x, reclustered, 2, seed=4))
    assert torch.equal(four.parent().labels, reclustered)
    again = divide("progressive", x, four, classes, k_max=4, seed=5)
    assert torch.equal(again.labels, match(kmeans(x, 4, seed=5), four.labels, 4))


def test_flat_keeps_the_names_it_finds():
    x, classes, _ = images()
    labels = kmeans(x, 4, seed=1)
    assert bool(usable(labels, classes, 4).all())
    first = divide("flat", x, Partition.whole(N), classes, k_max=4, seed=1)
    assert torch.equal(first.labels, labels)
    renamed = Partition((first.labels + 1) % 4, 4)
    again = divide("flat", x, renamed, classes, k_max=4, seed=1)
    assert torch.equal(again.labels, renamed.labels)


@pytest.mark.parametrize("gone", [(0,), (2,), (1, 3)])
def test_labels_divide_alike_when_groups_are_gone(gone):
    """Whole groups may be held out or dropped with their classes: what is left keeps its numbers, with gaps."""
    generator = torch.Generator().manual_seed(1)
    group_of_class = torch.tensor([0, 0, 1, 1, 1, 2, 3, 3, 4, 4])
    classes = torch.randint(len(group_of_class), (200,), generator=generator)
    classes = classes[~torch.isin(group_of_class[classes], torch.tensor(gone))]
    with_gaps = group_of_class[classes]
    left = sorted({int(group) for group in with_gaps})
    contiguous = torch.tensor([left.index(int(group)) for group in with_gaps])
    assert not torch.equal(with_gaps, contiguous)
    one = other = Partition.whole(len(classes))
    for k in (2, 4, 8):
        one = divide("labels", None, one, classes, k_max=8, seed=0, groups=with_gaps)
        other = divide("labels", None, other, classes, k_max=8, seed=0, groups=contiguous)
        assert torch.equal(one.labels, other.labels)
        assert bool((one.sizes() > 0).all())
        assert one.k == k
    shifted = divide(
        "labels", None, Partition.whole(len(classes)), classes, k_max=8, seed=0, groups=with_gaps - 9
    )
    assert torch.equal(shifted.labels, one.labels // 4)


def test_labels_keep_groups_and_classes_whole_while_they_can():
    _, classes, groups = images()
    halves, quarters, eighths = successive("labels")[1:4]
    for partition, units in ((halves, groups), (quarters, classes), (eighths, classes)):
        for unit in units.unique():
            assert len(partition.labels[units == unit].unique()) == 1
    # Groups of 128, 80, 48, 32, 32 images, largest first to the lighter side: 128 + 32 against 80 + 48 + 32.
    assert halves.sizes().tolist() == [160, 160]
    assert set(groups[halves.labels == 0].tolist()) == {7, 1}


def test_labels_split_a_single_class_evenly():
    classes, groups = torch.zeros(10).long(), torch.full((10,), 5)
    partition = Partition.whole(10)
    for sizes in ([5, 5], [3, 2, 3, 2], [2, 1, 1, 1, 2, 1, 1, 1]):
        partition = divide("labels", None, partition, classes, k_max=8, seed=0, groups=groups)
        assert partition.sizes().tolist() == sizes


def test_labels_with_a_lonely_image_leave_nodes_empty():
    groups = torch.tensor([0, 1, 1, 1, 1])
    partition = divide("labels", None, Partition.whole(5), groups, k_max=4, seed=0, groups=groups)
    partition = divide("labels", None, partition, groups, k_max=4, seed=0, groups=groups)
    assert partition.sizes().tolist() == [2, 2, 1, 0]


@pytest.mark.parametrize("strategy", list(DIVISIONS))
def test_the_arguments_decide_all(strategy):
    torch.manual_seed(1)
    first = successive(strategy, calls=3)
    torch.manual_seed(2)
    for a, b in zip(first, successive(strategy, calls=3), strict=True):
        assert torch.equal(a.labels, b.labels)


@pytest.mark.parametrize("strategy", ["progressive", "flat"])
def test_a_usable_clustering_is_sought(strategy, monkeypatch):
    """Only seeds from 12 on give two usable clusters."""
    seeds = []

    def clustering(x, k, seed=0, iterations=100):
        seeds.append(seed)
        return torch.arange(len(x)) % k if seed >= 12 else torch.zeros(len(x), dtype=torch.int64)

    for function in (divide, bisect):
        monkeypatch.setitem(unwrapped(function).__globals__, "kmeans", clustering)
    x, classes = torch.arange(16.0)[:, None], torch.arange(16) // 4
    divided = divide(strategy, x, Partition.whole(16), classes, k_max=2, seed=5)
    assert divided.labels.tolist() == [0, 1] * 8
    assert seeds[-8:] == list(range(5, 13))


@pytest.mark.parametrize("strategy", ["progressive", "flat"])
def test_degenerate_clusters_are_one_warning(strategy):
    """Four classes of two images in two places: two clusters are usable, four are not."""
    classes = torch.arange(4).repeat_interleave(2)
    x = torch.tensor([0.0, 1.0, 9.0, 10.0])[classes, None]
    partition = Partition.whole(8)
    if strategy == "progressive":
        partition = divide("progressive", x, partition, classes, k_max=4, seed=0)
        assert bool(usable(partition.labels, classes, 2).all())
    with pytest.warns(UserWarning, match=r"4 of 4 clusters are degenerate .*--k-max") as caught:
        partition = divide(strategy, x, partition, classes, k_max=4, seed=0)
    assert len(caught) == 1
    assert partition.sizes().tolist() == [2, 2, 2, 2]


def test_the_try_with_the_most_usable_clusters_is_kept(monkeypatch):
    """Usable clusters of two by seed: 0, 1, 1, 0, ...; the first of the ones is kept."""
    answers = {5: [0, 1] * 4, 6: [0, 0, 0, 0, 0, 0, 1, 1], 7: [1, 1, 1, 1, 1, 1, 0, 0]}

    def clustering(x, k, seed=0, iterations=100):
        return torch.tensor(answers.get(seed, [0, 1] * 4))

    monkeypatch.setitem(unwrapped(divide).__globals__, "kmeans", clustering)
    classes = torch.arange(4).repeat_interleave(2)
    with pytest.warns(UserWarning, match="1 of 2 clusters are degenerate"):
        divided = divide("flat", torch.ones(8, 1), Partition.whole(8), classes, k_max=2, seed=5)
    assert divided.labels.tolist() == answers[6]


@pytest.mark.parametrize("strategy", ["progressive", "flat"])
@pytest.mark.parametrize("n", [8, 9, 40])
def test_collapsed_embeddings_are_divided_all_the_same(strategy, n):
    classes, partition = torch.arange(n) // 2, Partition.whole(n)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for call in range(4):
            partition = divide(strategy, torch.ones(n, 4), partition, classes, k_max=8, seed=call)
    assert partition.k == 8
    assert int(partition.sizes().min()) > 0


def test_random_and_labels_do_not_warn():
    classes = torch.arange(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for strategy in ("random", "labels"):
            divide(strategy, None, Partition.whole(4), classes, k_max=4, seed=0, groups=classes)


def test_errors(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # so that our own errors are reached
    x, classes, groups = images()
    whole = Partition.whole(N)

    def refused(
        message, strategy="progressive", x=x, partition=whole, classes=classes, k_max=4, groups=groups
    ):
        with pytest.raises(ValueError, match=message):
            divide(strategy, x, partition, classes, k_max=k_max, seed=0, groups=groups)

    refused(
        r"'progresive': choose from progressive, flat, .*; did you mean 'progressive'\?",
        strategy="progresive",
    )
    refused("unknown division 'zzz': choose from", strategy="zzz")
    refused("k_max must be a power of two, got 6; use 4 or 8", k_max=6)
    refused("k_max must be at most the number of images, got 512 for 320", k_max=512)
    refused("the partition has 8 clusters already; use k_max 8 or more", partition=Partition(classes % 8, 8))
    refused("needs embeddings, got x = None", x=None)
    refused("needs super-categories, got groups = None", strategy="labels", groups=None)
    refused("x must have one row for each of the 320 images, got 3", x=x[:3])
    refused("classes must have one row for each of the 320 images, got 3", classes=classes[:3])
    refused("groups must have one row for each of the 320 images, got 3", groups=groups[:3])
    x = x.clone()
    x[5] = float("nan")
    refused("NaN or infinity in 1 of 320 rows", x=x)


def unwrapped(function):
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function
