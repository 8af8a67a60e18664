import sys

import numpy as np
import pytest
import torch

from divconq.bench.algorithms import (
    OURS,
    compare_kmeans,
    compare_nmi,
    compare_search,
    cost,
    points,
    scores,
)
from divconq.bench.report import algorithm
from divconq.evaluation import retrieval_scores

CPU = torch.device("cpu")
OTHERS = ("faiss", "scikit-learn", "pytorch-metric-learning")


def test_all_ways_find_the_same_neighbours():
    found = compare_search(300, 8, classes=60, device=CPU)
    assert tuple(found) == (OURS, *OTHERS)
    for name in OTHERS:
        shared = found[name].keys() - {"seconds"}
        assert {"recall@1", "map@r"} <= shared
        for score in shared:
            assert found[name][score] == pytest.approx(found[OURS][score], abs=1e-6), (name, score)
    assert 0 < found[OURS]["recall@1"] < 1


def test_all_ways_cluster_about_as_well():
    found = compare_kmeans(400, 4, k=5, iterations=20, device=CPU)
    assert tuple(found) == (OURS, *OTHERS[:2])
    costs = [way["cost"] for way in found.values()]
    assert max(costs) < 1.1 * min(costs)
    found = compare_nmi(200, 16, classes=20, device=CPU)
    assert tuple(found) == (OURS, *OTHERS)
    assert all(0.5 < way["nmi"] <= 1 for way in found.values())


def test_what_is_not_installed_is_said_and_nothing_else_fails(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    for found in (
        compare_search(60, 4, classes=12, device=CPU),
        compare_nmi(60, 4, classes=6, device=CPU),
    ):
        missing = {name for name, way in found.items() if way is None}
        assert missing == {"faiss", "pytorch-metric-learning"}
    assert compare_kmeans(60, 4, k=3, iterations=2, device=CPU)["faiss"] is None


def test_without_the_extra_the_others_are_compared(monkeypatch):
    loaded = [name for name in sys.modules if name.startswith("pytorch_metric_learning")]
    for name in ("pytorch_metric_learning", *loaded):  # another test may have loaded its parts
        monkeypatch.setitem(sys.modules, name, None)
    found = compare_search(60, 4, classes=12, device=CPU)
    assert {name for name, way in found.items() if way is None} == {"pytorch-metric-learning"}
    lines = algorithm("search", {"points": 60, "dim": 4, "classes": 12, "ways": found}).splitlines()
    assert [line.split(maxsplit=1) for line in lines if "not installed" in line] == [
        ["pytorch-metric-learning", "not installed"]
    ]


def test_others_can_be_left_out():
    assert tuple(compare_search(60, 4, classes=12, device=CPU, others=False)) == (OURS,)


def test_scores_of_neighbours_are_those_of_the_library():
    x, labels = points(90, 3, classes=20, device=CPU)
    labels[-1] = 77  # alone in its class
    distances = torch.cdist(x, x).fill_diagonal_(torch.inf)
    found = scores(distances.argsort(1)[:, :20].numpy(), labels.numpy(), (1, 5))
    ours = retrieval_scores(x, labels, ks=(1, 5))
    for name, value in found.items():
        assert value == pytest.approx(ours[name], abs=1e-6), name


def test_cost_is_the_mean_squared_distance_to_the_mean():
    random = np.random.default_rng(0)
    x, labels = random.normal(size=(30, 3)), random.integers(0, 4, 30)
    slow = sum(float(((x[i] - x[labels == labels[i]].mean(0)) ** 2).sum()) for i in range(30)) / 30
    assert cost(x, labels, 5) == pytest.approx(slow)
