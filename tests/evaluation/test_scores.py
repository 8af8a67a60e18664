"""A metric is one function and one line of ``METRICS``; every metric has a title and a unit."""

import pytest
import torch

from divconq.cli.tables import score_table
from divconq.evaluation import METRICS, Metric, evaluate
from divconq.evaluation.scores import is_score, score_names, title


def first_hit(ranking):
    """The rank of the first hit."""
    return ranking.hits.int().argmax(1).double() + 1


def precision_at_k(ranking, k):
    return ranking.hits[:, :k].double().mean(1)


@pytest.fixture
def searched():
    """Four images on a line, three of them of one class."""
    return torch.tensor([[0.0], [1.0], [1.9], [2.7]]), torch.tensor([0, 0, 1, 0])


def test_every_metric_of_the_table_is_scored_in_its_order(searched):
    scores = evaluate(*searched, ks=(1, 2))
    assert list(scores) == [
        *("recall@1", "recall@2", "map@r", "r_precision", "marp"),
        *("queries", "queries_without_positive", "nmi", "spread"),
    ]
    assert [name for name in scores if is_score(name)] == score_names((1, 2))
    assert "nmi" not in evaluate(*searched, ks=(1, 2), with_nmi=False)


def test_a_new_metric_is_one_function_and_one_line(searched, monkeypatch):
    before = evaluate(*searched, ks=(1, 2))
    monkeypatch.setitem(METRICS, "precision@k", Metric("P@k", precision_at_k))
    monkeypatch.setitem(
        METRICS, "first_hit", Metric("first hit", first_hit, higher_is_better=False, unit="number")
    )
    monkeypatch.setitem(METRICS, "size", Metric("size", of_embeddings=lambda x, labels, seed: len(x) / 8))
    scores = evaluate(*searched, ks=(1, 2))
    # neighbours of 0: 1, 2, 3; of 1: 2, 0, 3; of 3: 2, 1, 0; the image 2 has no other of its class
    assert scores["precision@1"] == pytest.approx(1 / 3)
    assert scores["precision@2"] == pytest.approx(1 / 2)
    assert scores["first_hit"] == pytest.approx((1 + 2 + 2) / 3)
    assert scores["size"] == 0.5
    assert {name: scores[name] for name in before} == before
    assert score_names((1,)) == ["recall@1", "map@r", "r_precision", "marp", "precision@1", "nmi", "size"]
    assert title("val_precision@2") == "val P@2"
    assert title("first_hit") == "first hit (lower is better)"
    assert not is_score("first_hit")
    assert "P@2           50.00" in score_table(scores).splitlines()


def test_names_that_are_no_metric_are_their_own_title():
    assert (title("loss"), title("val_loss"), title("accuracy@3")) == ("loss", "val loss", "accuracy@3")
    assert not any(map(is_score, ("loss", "epoch", "accuracy@3", "queries", "spread", "recall@", "recall@x")))
