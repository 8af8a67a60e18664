"""Plan the batches of an epoch. ``plan_epoch`` is a pure function, called before the epoch starts.

Steps
    Each step draws exactly ``batch`` images from one usable cluster (see ``divconq.division.usable_clusters``);
    images of other clusters are left out. ``epoch_length`` is the number of steps: ``images`` takes
    ``ceil(n / batch)``, ``largest`` and ``smallest`` take the number of usable clusters times
    ``ceil(size / batch)``, with the size of the largest or smallest of them in images that can be drawn.

Steps of a cluster
    With ``cluster_steps="proportional"`` each usable cluster gets a number of steps in proportion to its images that
    can be drawn, by largest remainder and with at least one step each. With ``equal`` all get the same number;
    steps that are left over go to one cluster each, and the next epoch continues with the next cluster.
    If there are fewer steps than usable clusters, both ways give one step to each of the next clusters. After
    ``ceil(usable / steps)`` epochs, every cluster has had a step.

Uniform batches (``per_class`` is None)
    The images of a cluster are dealt like a deck of cards that is reshuffled when it runs out. In an epoch, each
    image is drawn ``draws / images`` times, rounded down or up. A batch contains no image twice, unless the batch
    is larger than its cluster. With one cluster, every epoch draws every image.

``per_class = m``: a batch has ``g = batch / m`` groups, each of ``m`` images of one class
    A class with one image in its cluster is left out. Each of the other C classes is in every batch ``g / C``
    times, rounded down or up: at most once if ``C >= g``. The remaining ``g % C`` groups go to classes in
    proportion to their number of images, rounded at random, with at most one such group per class and step. With
    ``class_sampling="classes"`` they go to all classes alike: over an epoch, their numbers differ by at most one.
    Within a class, the images are dealt as above.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Sampler

from divconq.checks import check_batch, check_choice, check_class_sampling
from divconq.distributed import shard
from divconq.division import usable_clusters

ORDERS = ("random", "round_robin")
CLUSTER_STEPS = ("proportional", "equal")
EPOCH_LENGTHS = ("images", "largest", "smallest")

Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class EpochPlan:
    """The cluster and the images of each step; iteration yields one pair per step.

    ``left_out`` counts the images that cannot be drawn: their cluster is unusable or, with ``per_class``, it has no
    other image of their class. ``without_positive`` counts the images that have no other image of their class
    in their cluster; they can only be negatives.

    >>> plan = EpochPlan(torch.tensor([1, 0]), torch.tensor([[4, 5], [2, 3]]), left_out=0, without_positive=0)
    >>> [(cluster, index.tolist()) for cluster, index in plan]
    [(1, [4, 5]), (0, [2, 3])]
    """

    clusters: Int64[Tensor, " steps"]
    indices: Int64[Tensor, "steps batch"]
    left_out: int
    without_positive: int

    def __len__(self) -> int:
        return len(self.clusters)

    def __iter__(self) -> Iterator[tuple[int, Int64[Tensor, " batch"]]]:
        return zip(self.clusters.tolist(), self.indices, strict=True)


class ClusterBatches(Sampler[list[int]]):
    """A batch sampler for a DataLoader: the image indices of each step of ``plan``, which may be replaced.

    Under ``torchrun`` it yields this process's share of each batch.

    >>> plan = EpochPlan(torch.tensor([1, 0]), torch.tensor([[4, 5], [2, 3]]), left_out=0, without_positive=0)
    >>> list(ClusterBatches(plan))
    [[4, 5], [2, 3]]
    """

    def __init__(self, plan: EpochPlan) -> None:
        self.plan = plan

    def __iter__(self) -> Iterator[list[int]]:
        indices = self.plan.indices
        return iter(indices[:, shard(indices.shape[1])].tolist())

    def __len__(self) -> int:
        return len(self.plan)


def plan_epoch(
    labels: Int64[Tensor, " n"],
    clusters: Int64[Tensor, " n"],
    k: int,
    *,
    batch: int,
    per_class: int | None = None,
    class_sampling: str = "images",
    order: str = "random",
    cluster_steps: str = "proportional",
    epoch_length: str = "images",
    seed: int,
    epoch: int,
) -> EpochPlan:
    """Return a plan of batches, each from one of the ``k`` clusters.

    ``order`` is the order of the steps: ``random``, or ``round_robin`` over the clusters that have steps left.
    ``epoch_length``, ``cluster_steps`` and ``class_sampling`` are explained at the top of this module.

    >>> labels, clusters = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    >>> plan = plan_epoch(labels, clusters, 2, batch=4, order="round_robin", seed=0, epoch=0)
    >>> [(cluster, sorted(index.tolist())) for cluster, index in plan]
    [(0, [0, 1, 2, 3]), (1, [4, 5, 6, 7])]
    >>> len(plan_epoch(labels, clusters, 2, batch=3, epoch_length="largest", seed=0, epoch=0))  # 2 x ceil(4 / 3)
    4
    """
    n = len(labels)
    _check(n, clusters, k, batch, per_class, order)
    check_choice("cluster_steps", cluster_steps, CLUSTER_STEPS)
    check_choice("epoch_length", epoch_length, EPOCH_LENGTHS)
    check_class_sampling(class_sampling, per_class)
    cluster_of = clusters.cpu().numpy()
    pairs = np.stack([cluster_of, labels.cpu().numpy()])
    pool_of = np.unique(pairs, axis=1, return_inverse=True)[1].reshape(-1)  # numpy 2.0 gives it a second axis
    company = np.bincount(pool_of)  # number of images of each (cluster, class)
    usable = usable_clusters(clusters.cpu(), labels.cpu(), k).numpy()
    if not usable.any():
        raise ValueError(
            f"at least one cluster must have two classes with two images each, got none among {n} images of "
            f"{len(labels.unique())} classes in {k} clusters; use "
            + ("data with more images per class" if k == 1 else "fewer clusters")
        )
    drawable = usable[cluster_of]
    if per_class is not None:
        drawable &= company[pool_of] >= 2

    rng = np.random.default_rng([seed, epoch])
    images = np.flatnonzero(drawable)
    sizes = np.bincount(cluster_of[images], minlength=k)
    share = _proportional if cluster_steps == "proportional" else _equal
    steps = share(_length(epoch_length, n, sizes, batch), sizes, epoch)
    schedule = np.repeat(np.arange(k), steps)
    schedule = rng.permutation(schedule) if order == "random" else _round_robin(schedule, steps)
    indices = np.empty((len(schedule), batch), dtype=np.int64)
    for cluster in np.flatnonzero(steps):
        members, count = images[cluster_of[images] == cluster], int(steps[cluster])
        if per_class is None:
            rows = _uniform(members, count, batch, rng)
        else:
            uniform = class_sampling == "classes"
            rows = _by_class(members, pool_of[members], count, batch // per_class, per_class, rng, uniform)
        indices[schedule == cluster] = rows
    return EpochPlan(
        clusters=torch.from_numpy(schedule),
        indices=torch.from_numpy(indices),
        left_out=n - len(images),
        without_positive=int((company == 1).sum()),
    )


def _check(n: int, clusters: Tensor, k: int, batch: int, per_class: int | None, order: str) -> None:
    check_choice("order", order, ORDERS)
    check_batch(batch, per_class)
    if batch > n:
        raise ValueError(
            f"batch must be at most the number of training images, {n}, got {batch}; use a smaller batch"
        )
    if int(clusters.min()) < 0 or int(clusters.max()) >= k:
        raise ValueError(
            f"clusters must be numbered 0 to {k - 1} (k = {k}), "
            f"got {int(clusters.min())} to {int(clusters.max())}"
        )


def _length(epoch_length: str, n: int, sizes: Ints, batch: int) -> int:
    """Return the number of steps of an epoch; ``sizes`` counts the images of each cluster that can be drawn."""
    if epoch_length == "images":
        return -(-n // batch)
    usable = sizes[sizes > 0]
    size = int(usable.max() if epoch_length == "largest" else usable.min())
    return len(usable) * -(-size // batch)


def _proportional(steps: int, sizes: Ints, epoch: int) -> Ints:
    """Return the steps of each cluster, in proportion to the sizes, by largest remainder and at least one."""
    usable = np.flatnonzero(sizes)
    if steps < len(usable):
        return _equal(steps, sizes, epoch)
    given = np.zeros_like(sizes)
    given[usable] = 1
    for _ in range(steps - len(usable)):
        given[np.argmax(steps * sizes - given * sizes.sum())] += 1  # the cluster farthest below its share
    return given


def _equal(steps: int, sizes: Ints, epoch: int) -> Ints:
    """Return the steps of each cluster: as many for all, and one more for those whose turn it is."""
    usable = np.flatnonzero(sizes)
    each, rest = divmod(steps, len(usable))
    given = np.zeros_like(sizes)
    given[usable] = each
    given[usable[(epoch * rest + np.arange(rest)) % len(usable)]] += 1
    return given


def _round_robin(schedule: Ints, steps: Ints) -> Ints:
    """Reorder the sorted schedule so that the clusters take turns."""
    turn = np.concatenate([np.arange(s) for s in steps])
    return schedule[np.argsort(turn, kind="stable")]


class _Deck:
    """Deals shuffled images: each once per round, and none twice in a hand if possible."""

    def __init__(self, shuffled: Ints, rng: np.random.Generator) -> None:
        self.order, self.at, self.rng = shuffled, 0, rng

    def deal(self, size: int) -> Ints:
        """Deal ``size`` images; a hand larger than the deck contains the whole deck as often as possible."""
        whole, part = divmod(size, len(self.order))
        hand = self.order[self.at : self.at + part]
        self.at += part
        if len(hand) < part:
            hand = np.concatenate([hand, self._reshuffle(hand, part - len(hand))])
        return np.concatenate([self.order] * whole + [hand]) if whole else hand

    def _reshuffle(self, held: Ints, count: int) -> Ints:
        """Start a new round with ``count`` images that are not ``held``."""
        others = self.rng.permutation(self.order[: len(self.order) - len(held)])
        later = self.rng.permutation(np.concatenate([others[count:], held]))
        self.order, self.at = np.concatenate([others[:count], later]), count
        return self.order[:count]


def _uniform(members: Ints, steps: int, batch: int, rng: np.random.Generator) -> Ints:
    """Return ``batch`` images for each step."""
    deck = _Deck(rng.permutation(members), rng)
    return np.stack([deck.deal(batch) for _ in range(steps)])


def _by_class(
    members: Ints,
    classes: Ints,
    steps: int,
    groups: int,
    per_class: int,
    rng: np.random.Generator,
    uniform: bool,
) -> Ints:
    """Return ``groups`` groups for each step, each of ``per_class`` consecutive images of one class.

    Classes are drawn in proportion to their images or, if ``uniform``, all alike.
    """
    members = members[np.lexsort((rng.random(len(members)), classes))]  # shuffled within each class
    owned = np.unique(classes, return_counts=True)[1]
    decks = [_Deck(images, rng) for images in np.split(members, np.cumsum(owned)[:-1])]
    always, sometimes = divmod(groups, len(decks))
    rows = []
    quotas = _quotas(np.ones_like(owned) if uniform else owned, steps, sometimes, rng)
    for chosen in _spread(quotas, steps, sometimes, rng):
        times = np.full(len(decks), always)
        times[chosen] += 1
        present = rng.permutation(np.flatnonzero(times))
        sizes = (times[present] * per_class).tolist()
        rows.append(np.concatenate([decks[c].deal(size) for c, size in zip(present, sizes, strict=True)]))
    return np.stack(rows)


def _quotas(sizes: Ints, steps: int, count: int, rng: np.random.Generator) -> Ints:
    """Return the places of each class, out of ``steps * count``, in proportion to size and at most ``steps``.

    Classes that would exceed ``steps`` places get one in each step. The other shares are rounded down or up with one
    random offset to their cumulative sum, so on average each class gets exactly its share.
    """
    places, free = np.full(len(sizes), steps), np.ones(len(sizes), dtype=bool)
    while (full := free & (sizes * count >= sizes[free].sum())).any():
        free &= ~full
        count -= int(full.sum())
    which = rng.permutation(np.flatnonzero(free))
    total = sizes[which].sum()
    marks = (np.cumsum(sizes[which]) * steps * count + rng.integers(total)) // total
    places[which] = np.diff(marks, prepend=0)
    return places


def _spread(places: Ints, steps: int, count: int, rng: np.random.Generator) -> Iterator[Ints]:
    """Yield ``count`` classes for each step; each class is drawn as often as it has places.

    Classes are drawn without replacement, weighted by their remaining places (the smallest of exponential variables
    with these rates). A class with as many places as remaining steps is always drawn, so all places are filled.
    """
    left = places.astype(np.float64)
    for remaining in range(steps, 0, -1):
        keys = rng.standard_exponential(len(left)) / np.maximum(left, 1e-300)
        keys[left == remaining] = -1.0
        chosen = np.argpartition(keys, count - 1)[:count] if count else np.empty(0, dtype=np.int64)
        left[chosen] -= 1
        yield chosen
