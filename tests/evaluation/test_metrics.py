import math
import sys

import jaxtyping
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from divconq.division.lloyd import kmeans
from divconq.evaluation import evaluate, nmi, recall_at_1, retrieval_scores
from divconq.evaluation.neighbours import BYTES_PER_KEY, COLUMNS, ROWS
from evaluation.slow_scores import scores_by_hand

METRIC_FUNCTIONS = sys.modules["divconq.evaluation.metrics"]
RETRIEVAL = sys.modules["divconq.evaluation.retrieval"]
NEIGHBOURS = sys.modules["divconq.evaluation.neighbours"]


def embeddings(labels, d=6, seed=0, noise=1.0):
    """Unit vectors around a random centre for each class."""
    generator = torch.Generator().manual_seed(seed)
    _, classes = labels.unique(return_inverse=True)
    centres = torch.randn(int(classes.max()) + 1, d, generator=generator)
    return normalize(centres[classes] + noise * torch.randn(len(labels), d, generator=generator))


def sizes_to_labels(*sizes):
    return torch.cat([torch.full((size,), 11 * c - 30) for c, size in enumerate(sizes)])


SIZES = [(10,) * 8, (2,) * 40, (1, 2, 3, 50, 9, 1), (60, 2, 2)]


@pytest.mark.parametrize("sizes", SIZES)
def test_scores_equal_those_of_plain_loops(sizes):
    labels = sizes_to_labels(*sizes)
    x = embeddings(labels)
    assert retrieval_scores(x, labels) == pytest.approx(scores_by_hand(x, labels), abs=1e-12)


@pytest.mark.parametrize("sizes", SIZES)
def test_recall_at_1_alone_is_the_same_with_and_without_cameras(sizes):
    labels = sizes_to_labels(*sizes)
    x, cameras = embeddings(labels, noise=0.6), torch.arange(len(labels)) % 3
    alone, by_others = recall_at_1(x, labels), recall_at_1(x, labels, cameras)
    assert 0 < alone < 1
    assert alone == pytest.approx(scores_by_hand(x, labels, ks=(1,))["recall@1"], abs=1e-12)
    expected = scores_by_hand(x, labels, None, None, (1,), query_cameras=cameras)["recall@1"]
    assert by_others == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("sizes", SIZES)
def test_a_gallery_is_searched_like_in_plain_loops(sizes):
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


def test_marp_divides_by_the_hits_and_map_by_all_positives():
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
    monkeypatch.setattr(NEIGHBOURS, "ROWS", 64)
    monkeypatch.setattr(NEIGHBOURS, "COLUMNS", 64)
    budget = rows * (150 + 64) * BYTES_PER_KEY
    assert retrieval_scores(x, labels, budget=budget) == pytest.approx(scores_by_hand(x, labels), abs=1e-12)


@st.composite
def seen_by_cameras(draw):
    """Whole numbers, so that many distances are equal; few labels and cameras, so that much is dropped."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))

    def images(most):
        n = draw(st.integers(2, most))
        x = torch.randint(0, draw(st.integers(1, 4)), (n, 2), generator=generator).float()
        labels = torch.randint(-2, draw(st.integers(-1, 4)), (n,), generator=generator)
        return x, labels, torch.randint(-1, draw(st.integers(0, 4)), (n,), generator=generator)

    query, query_labels, query_cameras = images(25)
    if draw(st.booleans()):
        gallery, gallery_labels, gallery_cameras = images(40)
        findable = len(gallery)
    else:
        gallery = gallery_labels = gallery_cameras = None
        findable = len(query) - 1
    ks = tuple(draw(st.sets(st.integers(1, findable), min_size=1, max_size=3)))
    cameras = {"query_cameras": query_cameras, "gallery_cameras": gallery_cameras}
    return (query, query_labels, gallery, gallery_labels, ks), cameras


@given(seen_by_cameras())
@settings(max_examples=150, deadline=None)
def test_images_by_the_same_camera_are_removed_like_in_plain_loops(case):
    arguments, cameras = case
    expected = scores_by_hand(*arguments, **cameras)
    if not expected["queries"]:
        with pytest.raises(ValueError, match="queries has an image of its class by another camera to find"):
            retrieval_scores(*arguments, **cameras)
        return
    assert retrieval_scores(*arguments, **cameras) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("with_gallery", [False, True])
def test_cameras_in_every_block(with_gallery, monkeypatch):
    """Several blocks of queries and of the gallery, equal images in all of them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 3, (260, 3), generator=generator).float()
    labels, cameras = torch.randint(0, 5, (2, 260), generator=generator)
    arguments, seen_by = (x, labels), {"query_cameras": cameras}
    if with_gallery:
        arguments = (x[:100], labels[:100], x[100:], labels[100:])
        seen_by = {"query_cameras": cameras[:100], "gallery_cameras": cameras[100:]}
    monkeypatch.setattr(NEIGHBOURS, "COLUMNS", 64)
    smallest = ROWS * (100 + 64) * BYTES_PER_KEY
    ours = retrieval_scores(*arguments, **seen_by, budget=smallest)
    assert ours == pytest.approx(scores_by_hand(*arguments, **seen_by), abs=1e-12)
    assert ours["map@r"] != retrieval_scores(*arguments)["map@r"]


def test_a_different_camera_for_every_image_removes_nothing():
    labels = sizes_to_labels(*SIZES[2])
    x = embeddings(labels)
    own = torch.arange(len(x)) - 3
    assert retrieval_scores(x, labels, query_cameras=own) == retrieval_scores(x, labels)
    seen_by = {"query_cameras": own, "gallery_cameras": own + len(x)}
    assert retrieval_scores(x, labels, x, labels, **seen_by) == retrieval_scores(x, labels, x, labels)


def test_other_classes_by_the_same_camera_stay_misses():
    x, labels = torch.tensor([[0.0], [1.0], [2.0], [3.0]]), torch.tensor([0, 0, 1, 0])
    scores = retrieval_scores(
        x[:1], labels[:1], x[1:], labels[1:], (1, 2, 3),
        query_cameras=torch.tensor([0]), gallery_cameras=torch.tensor([0, 0, 1]),
    )  # fmt: skip
    assert [scores[f"recall@{k}"] for k in (1, 2, 3)] == [0, 1, 1]


def test_evaluate_passes_cameras_on():
    labels = sizes_to_labels(6, 6, 6)
    x, cameras = embeddings(labels), torch.arange(18) % 2
    for arguments, seen_by in (
        ((x, labels), {"query_cameras": cameras}),
        ((x, labels, x, labels), {"query_cameras": cameras, "gallery_cameras": cameras}),
    ):
        scores = evaluate(*arguments, **seen_by, ks=(1, 3), with_nmi=False)
        searched = retrieval_scores(*arguments, ks=(1, 3), **seen_by)
        assert {name: scores[name] for name in searched} == searched
        assert scores["map@r"] != evaluate(*arguments, ks=(1, 3), with_nmi=False)["map@r"]


def test_only_the_large_classes_need_long_rankings(monkeypatch):
    asked = []
    nearest = RETRIEVAL.nearest

    def spy(query, gallery, k, **options):
        asked.append((len(query), k))
        return nearest(query, gallery, k, **options)

    monkeypatch.setattr(RETRIEVAL, "nearest", spy)
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


@pytest.mark.parametrize(("seed", "runs"), [(0, 1), (5, 1), (0, 3), (5, 4)])
def test_nmi_of_several_runs_is_the_mean_over_their_seeds(seed, runs):
    labels = sizes_to_labels(*SIZES[2])
    x = embeddings(labels)
    found = []
    for s in range(seed, seed + runs):
        clusters = kmeans(x, len(set(labels.tolist())), seed=s, iterations=25)
        found.append(METRIC_FUNCTIONS.normalised_information(clusters, labels))
    assert runs == 1 or len(set(found)) > 1, "the seeds differ"
    assert nmi(x, labels, seed=seed, runs=runs) == sum(found) / runs
    assert evaluate(x, labels, ks=(1,), seed=seed, nmi_runs=runs)["nmi"] == sum(found) / runs
    assert nmi(x, labels, seed=seed) == found[0], "one run is what it was"


def test_information_is_that_of_scikit_learn():
    from sklearn.metrics import normalized_mutual_info_score

    draw = torch.Generator().manual_seed(0)
    one, many = torch.zeros(50, dtype=torch.int64), torch.arange(50)
    some, others = (torch.randint(-3, 9, (50,), generator=draw) for _ in range(2))
    for a in (one, many, some):
        for b in (one, many, some, others):
            expected = normalized_mutual_info_score(a.numpy(), b.numpy())
            assert METRIC_FUNCTIONS.normalised_information(a, b) == pytest.approx(expected, abs=1e-12)


def nmi_by_hand(a, b):
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))

    def entropy(outcomes):
        return -sum(p * math.log(p) for p in (outcomes.count(o) / len(outcomes) for o in set(outcomes)))

    both = entropy(a.tolist()) + entropy(b.tolist())
    return 2 * (both - entropy(pairs)) / both


def test_nmi_uses_the_given_number_of_iterations(monkeypatch):
    asked = []
    monkeypatch.setattr(
        METRIC_FUNCTIONS,
        "kmeans",
        lambda x, k, seed, iterations: asked.append((k, iterations)) or x[:, 0].long(),
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
    refused("the same number of features, got 3 and 2", x, labels, x[:, :2], labels)
    refused("none of the 5 queries has an image of its class to find", x, labels, x, labels + 9)
    refused("of its class by another camera to find", x, labels, query_cameras=labels)
    refused("gallery_cameras need a gallery, got none", x, labels, gallery_cameras=labels)
    refused("got only query_cameras; pass gallery_cameras too", x, labels, x, labels, query_cameras=labels)
    refused("got only gallery_cameras; pass query_cameras too", x, labels, x, labels, gallery_cameras=labels)
    refused(r"query needs one camera .* got shape \(3,\)", x, labels, query_cameras=labels[:3])
    refused(
        r"gallery needs one camera for each of its 5 images, got shape \(3,\)",
        x, labels, x, labels, query_cameras=labels, gallery_cameras=labels[:3],
    )  # fmt: skip
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
    cameras = torch.arange(len(x)) % 3
    on_device = retrieval_scores(x.cuda(), labels.cuda(), query_cameras=cameras)
    assert on_device == pytest.approx(retrieval_scores(x, labels, query_cameras=cameras), abs=1e-4)
