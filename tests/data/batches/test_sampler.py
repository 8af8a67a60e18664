import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from divconq.data.batches.sampler import plan_epoch


def make(sizes, k, seed):
    """Return classes of the given sizes, with images in random order and random clusters."""
    rng = np.random.default_rng(seed)
    classes = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return torch.from_numpy(classes), torch.from_numpy(rng.integers(0, k, len(classes)))


@st.composite
def problems(draw):
    sizes = draw(st.lists(st.integers(1, 12), min_size=2, max_size=25))
    k = draw(st.integers(1, 4))
    m = draw(st.sampled_from([None, None, 2, 3, 4]))
    if sum(sizes) < 2 * (m or 1):
        sizes.append(8)
    batch = draw(st.integers(2, sum(sizes) // (m or 1))) * (m or 1)
    return {
        "data": make(sizes, k, draw(st.integers(0, 99))),
        "k": k,
        "batch": batch,
        "per_class": m,
        "class_sampling": draw(st.sampled_from(["images", "classes"])) if m else "images",
        "order": draw(st.sampled_from(["random", "round_robin"])),
        "cluster_steps": draw(st.sampled_from(["proportional", "equal"])),
        "epoch_length": draw(st.sampled_from(["images", "largest", "smallest"])),
        "seed": draw(st.integers(0, 9)),
        "epoch": draw(st.integers(0, 9)),
    }


def solve(problem):
    arguments = dict(problem)
    return plan_epoch(*arguments.pop("data"), arguments.pop("k"), **arguments)


def members(classes, clusters):
    """Return {cluster: {class: [image, ...]}}."""
    found = {}
    for image, (klass, cluster) in enumerate(zip(classes.tolist(), clusters.tolist(), strict=True)):
        found.setdefault(cluster, {}).setdefault(klass, []).append(image)
    return found


def drawable(classes, clusters, m):
    """Return ``members`` without unusable clusters and, with ``m``, without images that have no positive."""
    found = {}
    for cluster, groups in members(classes, clusters).items():
        pairs = {klass: images for klass, images in groups.items() if len(images) >= 2}
        if len(pairs) >= 2:
            found[cluster] = pairs if m else groups
    return found


def within_one(count, share):
    return math.floor(share) <= count <= math.ceil(share)


def expected_length(epoch_length, n, sizes, batch):
    """``sizes`` counts the images of every usable cluster that can be drawn."""
    if epoch_length == "images":
        return math.ceil(Fraction(n, batch))
    size = max(sizes.values()) if epoch_length == "largest" else min(sizes.values())
    return sum(math.ceil(Fraction(size, batch)) for _ in sizes)


def expected_steps(steps, weights, epoch, cluster_steps="proportional"):
    usable = sorted(weights)
    if cluster_steps == "equal" or steps < len(usable):
        each = steps // len(usable)
        rest = steps - each * len(usable)
        turns = Counter(usable[(epoch * rest + i) % len(usable)] for i in range(rest))
        return +Counter({c: each + turns[c] for c in usable})
    share = {c: Fraction(steps * weights[c], sum(weights.values())) for c in usable}
    result = Counter(usable)
    while sum(result.values()) < steps:
        result[max(usable, key=lambda c: share[c] - result[c])] += 1
    return result


def check_even(hands, images):
    """Check that image counts differ by at most one, in every hand and over all hands."""
    for hand in [*hands, list(itertools.chain(*hands))]:
        counts = Counter(hand)
        assert set(counts) <= set(images)
        assert all(within_one(counts[image], Fraction(len(hand), len(images))) for image in images)


def shares(sizes, steps, count):
    """Return ``steps * count`` places in proportion to size, at most ``steps`` for each class."""
    full = set()
    while True:
        free = sum(size for klass, size in sizes.items() if klass not in full)
        share = {
            klass: Fraction(steps) if klass in full else Fraction(size * steps * (count - len(full)), free)
            for klass, size in sizes.items()
        }
        if all(value <= steps for value in share.values()):
            return share
        full |= {klass for klass, value in share.items() if value > steps}


def check_groups(batches, pools, g, m, classes, class_sampling="images"):
    """Check that each batch of a cluster has ``g`` groups of ``m`` images of one class."""
    always, sometimes = divmod(g, len(pools))
    hands = {klass: [] for klass in pools}
    for batch in batches:
        groups = [batch[i : i + m] for i in range(0, len(batch), m)]
        assert all(len({classes[image] for image in group}) == 1 for group in groups)
        times = Counter(classes[group[0]] for group in groups)
        assert set(times) <= set(pools)
        assert all(times[klass] in (always, always + 1) for klass in pools)
        for klass in times:
            hands[klass].append([image for image in batch if classes[image] == klass])

    steps, images = len(batches), sum(map(len, pools.values()))
    uniform = class_sampling == "classes"
    share = shares({klass: len(pool) for klass, pool in pools.items()}, steps, sometimes)
    for klass, pool in pools.items():
        check_even(hands[klass], pool)
        drawn = sum(map(len, hands[klass])) // m
        if uniform:
            assert within_one(drawn, Fraction(steps * g, len(pools)))
            continue
        assert within_one(drawn - always * steps, share[klass])
        if len(pools) >= g and steps * g * m >= images and drawn < steps:
            assert len(set(pool) - {image for hand in hands[klass] for image in hand}) < m


@settings(deadline=None, max_examples=300)
@given(problems())
def test_plan(problem):
    classes, clusters = problem["data"]
    n, batch, m = len(classes), problem["batch"], problem["per_class"]
    pools = drawable(classes, clusters, m)
    if not pools:
        with pytest.raises(ValueError, match="two classes with two images"):
            solve(problem)
        return

    plan = solve(problem)
    sizes = {cluster: sum(map(len, groups.values())) for cluster, groups in pools.items()}
    steps = expected_length(problem["epoch_length"], n, sizes, batch)
    assert len(plan) == steps
    assert plan.indices.shape == (steps, batch)
    assert plan.left_out == n - sum(sizes.values())
    every = [images for groups in members(classes, clusters).values() for images in groups.values()]
    assert plan.without_positive == sum(len(images) == 1 for images in every)

    batches = {}
    for cluster, index in plan:
        assert set(clusters[index].tolist()) == {cluster}
        batches.setdefault(cluster, []).append(index.tolist())
    given_steps = {cluster: len(rows) for cluster, rows in batches.items()}
    assert given_steps == expected_steps(steps, sizes, problem["epoch"], problem["cluster_steps"])
    for cluster, rows in batches.items():
        if m:
            classes_of = classes.tolist()
            check_groups(rows, pools[cluster], batch // m, m, classes_of, problem["class_sampling"])
        else:
            check_even(rows, [image for images in pools[cluster].values() for image in images])


@settings(deadline=None, max_examples=50)
@given(problems())
def test_round_robin_order(problem):
    if not drawable(*problem["data"], problem["per_class"]):
        return
    plan = solve({**problem, "order": "round_robin"})
    left, expected = Counter(plan.clusters.tolist()), []
    while left.total():
        for cluster in range(problem["k"]):
            if left[cluster]:
                left[cluster] -= 1
                expected.append(cluster)
    assert plan.clusters.tolist() == expected


@pytest.mark.parametrize("m", [None, 2])
def test_deterministic_and_different_between_epochs_and_seeds(m):
    data = make([6] * 20, 2, seed=0)

    def plan(**changes):
        return plan_epoch(*data, 2, **{"batch": 8, "per_class": m, "seed": 0, "epoch": 0, **changes})

    assert torch.equal(plan().indices, plan().indices)
    assert torch.equal(plan().clusters, plan().clusters)
    assert not torch.equal(plan().indices, plan(epoch=1).indices)
    assert not torch.equal(plan().indices, plan(seed=1).indices)
    assert not torch.equal(plan().clusters, plan(epoch=1).clusters)


def test_one_cluster_draws_every_image_in_every_epoch():
    classes, clusters = make([1, 2, 3, 4, 5, 6, 7], 1, seed=0)
    for epoch in range(5):
        plan = plan_epoch(classes, clusters, 1, batch=6, seed=0, epoch=epoch)
        assert set(plan.indices.flatten().tolist()) == set(range(len(classes)))


def test_per_class_plan_draws_every_image():
    classes, clusters = make([2, 4, 6, 8] * 10, 1, seed=0)
    plan = plan_epoch(classes, clusters, 1, batch=20, per_class=2, seed=0, epoch=3)
    assert sorted(plan.indices.flatten().tolist()) == list(range(len(classes)))


def test_more_clusters_than_steps_take_turns_over_epochs():
    classes = torch.arange(2).repeat_interleave(2).repeat(5)
    clusters = torch.arange(5).repeat_interleave(4)
    for first in range(4):
        served = [
            plan_epoch(classes, clusters, 5, batch=10, seed=0, epoch=epoch).clusters.tolist()
            for epoch in range(first, first + 3)
        ]
        assert {cluster for epoch in served for cluster in epoch} == set(range(5))


def test_pairs_share_a_batch_with_expected_probability():
    """Any two of six images share a batch of three with probability 2 / 5."""
    classes = torch.tensor([0, 0, 0, 1, 1, 1])
    together = torch.zeros(6, 6)
    for epoch in range(1000):
        plan = plan_epoch(classes, torch.zeros_like(classes), 1, batch=3, seed=0, epoch=epoch)
        for row in plan.indices:
            together[row[:, None], row] += 1 / 1000
    pairs = together[~torch.eye(6, dtype=torch.bool)]
    assert torch.allclose(pairs, torch.tensor(0.4), atol=0.06)


def test_images_are_drawn_equally_often_on_average():
    """A class of s images has a share of s / 2 groups, rounded at random if s is odd."""
    sizes = [2, 3, 4, 5, 6, 7, 8, 7]
    classes, clusters = make(sizes, 1, seed=0)
    count = torch.zeros(len(classes))
    for epoch in range(600):
        plan = plan_epoch(classes, clusters, 1, batch=6, per_class=2, seed=0, epoch=epoch)
        count += torch.bincount(plan.indices.flatten(), minlength=len(classes)) / 600
    assert torch.allclose(count, torch.tensor(1.0), atol=0.1)


# Two clusters of 40 and 16 images, in batches of 6: 7 and 3 steps to draw all of them.
UNEVEN = torch.arange(56) % 4, (torch.arange(56) >= 40).long()


@pytest.mark.parametrize(
    ("epoch_length", "cluster_steps", "expected"),
    [
        ("images", "proportional", [7, 3]),
        ("images", "equal", [5, 5]),
        ("largest", "proportional", [10, 4]),
        ("largest", "equal", [7, 7]),
        ("smallest", "proportional", [4, 2]),
        ("smallest", "equal", [3, 3]),
    ],
)
def test_steps_of_an_epoch_and_of_its_clusters(epoch_length, cluster_steps, expected):
    plan = plan_epoch(
        *UNEVEN, 2, batch=6, epoch_length=epoch_length, cluster_steps=cluster_steps, seed=0, epoch=0
    )
    assert torch.bincount(plan.clusters).tolist() == expected
    drawn = [torch.bincount(plan.indices.flatten(), minlength=56)[UNEVEN[1] == c] for c in (0, 1)]
    assert all(int(counts.max()) - int(counts.min()) <= 1 for counts in drawn)


def test_an_unusable_cluster_makes_an_epoch_no_longer():
    """The largest cluster has one class, so it has no steps and does not count."""
    classes, clusters = (torch.cat([part, torch.full((90,), 2 * i)]) for i, part in enumerate(UNEVEN))
    lengths = {
        name: len(plan_epoch(classes, clusters, 4, batch=6, epoch_length=name, seed=0, epoch=0))
        for name in ("images", "largest", "smallest")
    }
    assert lengths == {"images": 25, "largest": 14, "smallest": 6}


def test_steps_that_are_left_over_go_round():
    """Seven steps for three clusters: each has the third step in one epoch of three."""
    classes, clusters = torch.arange(42) % 2, torch.arange(42) // 14
    given = [
        torch.bincount(
            plan_epoch(classes, clusters, 3, batch=6, cluster_steps="equal", seed=0, epoch=epoch).clusters
        ).tolist()
        for epoch in range(4)
    ]
    assert given == [[3, 2, 2], [2, 3, 2], [2, 2, 3], [3, 2, 2]]


def test_classes_are_drawn_alike_or_by_their_images():
    """Classes of 2, 4, 6 and 12 images; two of them are in every batch."""
    classes, clusters = make([2, 4, 6, 12], 1, seed=0)
    found = {}
    for class_sampling in ("images", "classes"):
        groups = torch.zeros(4)
        for epoch in range(400):
            plan = plan_epoch(
                classes, clusters, 1, batch=4, per_class=2, class_sampling=class_sampling, seed=0, epoch=epoch
            )
            counts = torch.bincount(classes[plan.indices[:, ::2].flatten()], minlength=4)
            assert int(counts.sum()) == 12
            if class_sampling == "classes":
                assert counts.tolist() == [3, 3, 3, 3], "12 groups for four classes"
            groups += counts / 400
        found[class_sampling] = groups
    torch.testing.assert_close(found["images"], torch.tensor([1.0, 2.0, 3.0, 6.0]), rtol=0, atol=0.05)


def test_pairs_of_classes_are_in_a_batch_equally_often():
    """Any two of five classes are two of the three of a batch with probability 3 / 10."""
    classes, clusters = make([2, 3, 5, 8, 13], 1, seed=0)
    together = torch.zeros(5, 5)
    for epoch in range(600):
        plan = plan_epoch(
            classes, clusters, 1, batch=6, per_class=2, class_sampling="classes", seed=0, epoch=epoch
        )
        for row in classes[plan.indices[:, ::2]]:
            together[row[:, None], row] += 1 / (600 * len(plan))
    pairs = together[~torch.eye(5, dtype=torch.bool)]
    torch.testing.assert_close(pairs, torch.full((20,), 0.3), rtol=0, atol=0.03)
    torch.testing.assert_close(together.diag(), torch.full((5,), 0.6), rtol=0, atol=0.02)


def test_images_left_out_and_without_positive():
    classes = torch.tensor([0, 0, 1, 1, 2, 3, 3, 4])
    clusters = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1])  # in cluster 1 only class 3 has a pair
    plan = plan_epoch(classes, clusters, 2, batch=4, seed=0, epoch=0)
    assert (plan.left_out, plan.without_positive) == (3, 2)
    assert set(plan.indices.flatten().tolist()) == {0, 1, 2, 3, 4}
    plan = plan_epoch(classes, clusters, 2, batch=4, per_class=2, seed=0, epoch=0)
    assert (plan.left_out, plan.without_positive) == (4, 2)
    assert set(plan.indices.flatten().tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 13}, "at most the number of training images, 12, got 13"),
        ({"batch": 1}, "batch must be at least 2, got 1"),
        ({"per_class": 1}, "per_class must be at least 2, got 1"),
        ({"batch": 8, "per_class": 3}, "got 8; use 6 or 9"),
        ({"batch": 4, "per_class": 4}, "got 4; use 8 or 12"),
        ({"order": "sorted"}, "random, round_robin, got 'sorted'"),
        ({"cluster_steps": "even"}, "cluster_steps must be one of proportional, equal, got 'even'"),
        ({"epoch_length": "longest"}, "images, largest, smallest, got 'longest'; did you mean 'largest'"),
        ({"class_sampling": "class"}, "images, classes, got 'class'; did you mean 'classes'"),
        (
            {"class_sampling": "classes"},
            "class_sampling must be images without per_class, got 'classes'; set --per-class",
        ),
        ({"k": 2}, "numbered 0 to 1 .* got 0 to 2"),
    ],
)
def test_errors(changes, message):
    classes, clusters = torch.arange(2).repeat(6), torch.arange(3).repeat_interleave(4)
    arguments = {"k": 3, "batch": 4, "seed": 0, "epoch": 0, **changes}
    with pytest.raises(ValueError, match=message):
        plan_epoch(classes, clusters, **arguments)


def test_no_usable_cluster_names_the_remedy():
    classes = torch.tensor([0, 0, 1, 2])
    with pytest.raises(ValueError, match="use data with more images per class"):
        plan_epoch(classes, torch.zeros_like(classes), 1, batch=2, seed=0, epoch=0)
    classes = torch.tensor([0, 0, 1, 1])
    with pytest.raises(ValueError, match="use fewer clusters"):
        plan_epoch(classes, classes, 2, batch=2, seed=0, epoch=0)
