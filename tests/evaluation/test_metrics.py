import math
import sys

import jaxtyping
import pytest
import torch
from torch.nn.functional import normalize

from divconq.division.kmeans import kmeans
from divconq.evaluation import nmi, retrieval_scores
from divconq.evaluation.neighbours import BYTES_PER_KEY, COLUMNS, ROWS

METRICS = sys.modules["divconq.evaluation.metrics"]
NEIGHBOURS = sys.modules["divconq.evaluation.neighbours"]


def embeddings(labels, d=6, seed=0, noise=1.0):
    """Unit vectors around a random centre for each class."""
    generator = torch.Generator().manual_seed(seed)
    _, classes = labels.unique(return_inverse=True)
    centres = torch.randn(int(classes.max()) + 1, d, generator=generator)
    return normalize(centres[classes] + noise * torch.randn(len(labels), d, generator=generator))


def sizes_to_labels(*sizes):
    return torch.cat([torch.full((size,), 11 * c - 30) for c, size in enumerate(sizes)])


def scores_by_hand(query, query_labels, gallery=None, gallery_labels=None, ks=(1, 2, 4, 8)):
    """One query after the other, straight from the definitions."""
    alone = gallery is None
    if alone:
        gallery, gallery_labels = query, query_labels
    sums = dict.fromkeys([*(f"recall@{k}" for k in ks), "map@r", "r_precision", "marp"], 0.0)
    scored = left_out = 0
    for q in range(len(query)):
        others = [i for i in range(len(gallery)) if not (alone and i == q)]
        distance = {i: float((query[q].double() - gallery[i].double()).norm()) for i in others}
        ranking = sorted(others, key=lambda i: (distance[i], i))
        hit = [int(gallery_labels[i]) == int(query_labels[q]) for i in ranking]
        r = sum(hit)
        if r == 0:
            left_out += 1
            continue
        scored += 1
        for k in ks:
            sums[f"recall@{k}"] += any(hit[:k])
        precisions = [sum(hit[: i + 1]) / (i + 1) for i in range(r) if hit[i]]
        sums["map@r"] += sum(precisions) / r
        sums["r_precision"] += len(precisions) / r
        sums["marp"] += sum(precisions) / len(precisions) if precisions else 0.0
    means = {name: total / scored for name, total in sums.items()}
    return {**means, "queries": scored, "queries_without_positive": left_out}


SIZES = [(10,) * 8, (2,) * 40, (1, 2, 3, 50, 9, 1), (60, 2, 2)]


@pytest.mark.parametrize("sizes", SIZES)
def test_scores_are_what_plain_loops_find(sizes):
    labels = sizes_to_labels(*sizes)
    x = embeddings(labels)
    assert retrieval_scores(x, labels) == pytest.approx(scores_by_hand(x, labels), abs=1e-12)


@pytest.mark.parametrize("sizes", SIZES)
def test_a_gallery_is_searched_as_plain_loops_do(sizes):
    """Some query classes are not in the gallery, and some gallery classes have no query."""
    labels = sizes_to_labels(*sizes)
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))]
    x = embeddings(labels)
    query, gallery = slice(0, len(x) // 3), slice(len(x) // 3, None)
    arguments = (x[query], labels[query], x[gallery], labels[gallery], (1, 5, 20))
    assert retrieval_scores(*arguments) == pytest.approx(scores_by_hand(*arguments), abs=1e-12)


@pytest.mark.parametrize("with_gallery", [False, True])
@pytest.mark.parametrize("sizes", [(10,) * 8, (2,) * 40, (5, 2, 3, 50, 9)])
def test_scores_are_those_of_pytorch_metric_learning(sizes, with_gallery):
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    labels = sizes_to_labels(*sizes)
    query, gallery = embeddings(labels, seed=2), embeddings(labels, seed=2, noise=0.5)
    measures = ("precision_at_1", "mean_average_precision_at_r", "r_precision")
    calculator = AccuracyCalculator(include=measures, k="max_bin_count", device=torch.device("cpu"))
    if with_gallery:
        theirs = calculator.get_accuracy(query, labels, gallery, labels)
        ours = retrieval_scores(query, labels, gallery, labels)
    else:
        theirs = calculator.get_accuracy(query, labels)
        ours = retrieval_scores(query, labels)
    ours_in_order = [ours["recall@1"], ours["map@r"], ours["r_precision"]]
    assert ours_in_order == pytest.approx([theirs[measure] for measure in measures], abs=1e-6)


def test_marp_divides_by_the_hits_and_map_by_all_there_are():
    """The query 0 finds: hit, miss, hit, miss; of its R = 3 images, two are in the first three."""
    gallery = torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0]])
    scores = retrieval_scores(
        torch.zeros(1, 1), torch.tensor([7]), gallery, torch.tensor([7, 0, 7, 0, 7]), ks=(1, 2)
    )
    assert scores["map@r"] == pytest.approx((1 + 2 / 3) / 3)
    assert scores["marp"] == pytest.approx((1 + 2 / 3) / 2)
    assert scores["r_precision"] == pytest.approx(2 / 3)


def test_without_a_hit_every_score_is_zero():
    gallery, labels = torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1])
    scores = retrieval_scores(torch.zeros(1, 1), torch.tensor([1]), gallery, labels, ks=(1, 2))
    assert (scores["recall@1"], scores["recall@2"]) == (0, 1)
    assert scores["map@r"] == scores["r_precision"] == scores["marp"] == 0


def test_queries_without_positive_are_counted_and_left_out():
    labels = torch.tensor([0, 0, 1, 1, 2, 3])
    x = torch.tensor([[0.0], [0.1], [5.0], [5.1], [0.05], [5.05]])
    scores = retrieval_scores(x, labels, ks=(1, 2))
    assert (scores["queries"], scores["queries_without_positive"]) == (4, 2)
    assert (scores["recall@1"], scores["recall@2"]) == (0, 1)


def test_query_classes_the_gallery_lacks_are_left_out():
    query_labels = torch.tensor([-9, 2, 3, 4, 99])
    scores = retrieval_scores(
        torch.rand(5, 2), query_labels, torch.rand(4, 2), torch.tensor([2, 2, 4, 4]), ks=(4,)
    )
    assert (scores["queries"], scores["queries_without_positive"], scores["recall@4"]) == (2, 3, 1)


@pytest.mark.parametrize("sizes", [(300, 40, 2, 2, 1), (9,) * 40])
def test_the_budget_does_not_matter(sizes):
    labels = sizes_to_labels(*sizes)
    x = embeddings(labels, d=20)
    x[1::3] = x[::3][: len(x[1::3])]  # a third of the images twice
    smallest = ROWS * (300 + COLUMNS) * BYTES_PER_KEY
    assert retrieval_scores(x, labels, budget=smallest) == retrieval_scores(x, labels, budget=1 << 30)


@pytest.mark.parametrize("rows", [64, 128])
def test_ties_are_decided_by_the_index_in_every_block(rows, monkeypatch):
    """Whole numbers: distances are exact, and many are equal."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 3, (150, 3), generator=generator).float()
    labels = torch.randint(0, 6, (150,), generator=generator)
    monkeypatch.setattr(NEIGHBOURS, "COLUMNS", 64)
    budget = rows * (150 + 64) * BYTES_PER_KEY
    assert retrieval_scores(x, labels, budget=budget) == pytest.approx(scores_by_hand(x, labels), abs=1e-12)


def test_only_the_large_classes_need_long_rankings(monkeypatch):
    asked = []
    nearest = METRICS.nearest

    def spy(query, gallery, k, **options):
        asked.append((len(query), k))
        return nearest(query, gallery, k, **options)

    monkeypatch.setattr(METRICS, "nearest", spy)
    labels = sizes_to_labels(200, 3, 3, 3, 2)
    retrieval_scores(embeddings(labels), labels, ks=(1, 4))
    assert asked == [(11, 4), (200, 199)]


def test_names_of_classes_do_not_matter():
    labels = sizes_to_labels(*SIZES[2])
    x = embeddings(labels)
    renamed = -(10**15) + 7**12 * labels
    assert retrieval_scores(x, renamed) == retrieval_scores(x, labels)


def test_the_order_of_ks_is_kept():
    labels = sizes_to_labels(5, 5)
    scores = retrieval_scores(embeddings(labels), labels, ks=(4, 1))
    assert list(scores)[:2] == ["recall@4", "recall@1"]
    assert scores["recall@4"] >= scores["recall@1"]


@pytest.mark.parametrize("seed", [0, 3])
def test_nmi_is_that_of_the_clusters(seed):
    from sklearn.metrics import normalized_mutual_info_score

    labels = sizes_to_labels(20, 30, 5, 25)
    x = embeddings(labels)
    clusters = kmeans(x, 4, seed=seed, iterations=25)
    expected = normalized_mutual_info_score(labels.numpy(), clusters.numpy(), average_method="arithmetic")
    assert 0 < expected < 1
    assert nmi(x, labels, seed=seed) == pytest.approx(expected, abs=1e-12)
    assert nmi(x, labels, seed=seed) == pytest.approx(nmi_by_hand(labels, clusters), abs=1e-9)


def nmi_by_hand(a, b):
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))

    def entropy(outcomes):
        return -sum(p * math.log(p) for p in (outcomes.count(o) / len(outcomes) for o in set(outcomes)))

    both = entropy(a.tolist()) + entropy(b.tolist())
    return 2 * (both - entropy(pairs)) / both


def test_nmi_takes_as_many_iterations_as_asked(monkeypatch):
    asked = []
    monkeypatch.setattr(
        METRICS, "kmeans", lambda x, k, seed, iterations: asked.append((k, iterations)) or x[:, 0].long()
    )
    nmi(torch.rand(4, 2), torch.tensor([5, 5, 6, 9]), iterations=3)
    assert asked == [(3, 3)]


def test_errors(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # so that our own errors are reached
    x, labels = torch.rand(5, 3), torch.tensor([0, 0, 1, 1, 1])

    def refused(message, *arguments, **options):
        with pytest.raises(ValueError, match=message):
            retrieval_scores(*arguments, **{"ks": (1,), **options})

    refused(r"query must be of shape \(images, features\) and not empty, got \(0, 3\)", x[:0], labels[:0])
    refused(r"query must be of shape \(images, features\) and not empty, got \(15,\)", x.flatten(), labels)
    refused(r"query needs one label for each of its 5 images, got shape \(4,\)", x, labels[:4])
    refused("got only gallery; pass gallery_labels too", x, labels, x)
    refused("got only gallery_labels; pass gallery too", x, labels, None, labels)
    refused(r"gallery needs one label for each of its 5 images", x, labels, x, labels[:4])
    refused(r"gallery must be of shape", x, labels, x[:0], labels[:0])
    refused("as many features, got 3 and 2", x, labels, x[:, :2], labels)
    refused("none of the 5 queries has an image of its class", x, labels, x, labels + 9)
    refused("none of the 5 queries", x, torch.arange(5))
    refused(
        r"ks must lie between 1 and the 4 images that a query can find, got \(1, 5\)", x, labels, ks=(1, 5)
    )
    refused("between 1 and the 5 images", x, labels, x, labels, ks=(6,))
    for ks in ((), (0,)):
        refused("ks must lie between 1", x, labels, ks=ks)
    for value, dtype in (
        (math.nan, torch.float32),
        (math.inf, torch.float32),
        (1e30, torch.float32),
        (1e60, torch.float64),
    ):
        bad = x.to(dtype).clone()
        bad[1:3, 0] = value
        refused("query must be finite, .* in 2 of 5 rows", bad, labels)
        refused("gallery must be finite, .* in 2 of 5 rows", x, labels, bad, labels)
        with pytest.raises(ValueError, match=r"x must be finite, .* in 2 of 5 rows"):
            nmi(bad, labels)
    with pytest.raises(ValueError, match="x needs one label for each of its 5 images"):
        nmi(x, labels[:2])
    refused("budget must be at least", x, labels, budget=1000)


@pytest.mark.gpu
def test_cuda_and_cpu_agree():
    labels = sizes_to_labels(300, 40, 2, 2, 1)
    x = embeddings(labels, d=20)
    on_device = retrieval_scores(x.cuda(), labels.cuda())
    assert on_device == pytest.approx(retrieval_scores(x, labels), abs=1e-4)
