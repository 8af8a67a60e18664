from pathlib import Path

from divconq.cli.tables import REID, score_table, summary

SCORES = {"recall@1": 0.5, "nmi": 0.25, "queries": 7.0, "queries_without_positive": 0.0, "spread": 0.9}


def test_scores_of_random_galleries_are_shown_and_explained():
    table = score_table(SCORES | {"reid_recall@1": 0.75, "reid_recall@5": 1.0})
    assert table.splitlines() == [
        "R@1        50.00",
        "NMI        25.00",
        "reid R@1   75.00",
        "reid R@5  100.00",
        "queries        7",
        REID,
    ]
    assert REID not in score_table(SCORES)


def test_queries_left_out_are_told():
    table = score_table(SCORES | {"queries_without_positive": 3.0})
    assert "left out: 3 queries without another image of their class (of another camera, where" in table
    assert "left out" not in score_table(SCORES)


def test_the_end_of_a_run_explains_them_too():
    record = {"epoch": 1, "k": 2, "seconds": {"train": 1.0}, **SCORES}
    with_draws = summary([record | {"reid_recall@1": 0.75}], "recall@1", 2, Path("runs/x"))
    assert "R@1    NMI  reid R@1" in with_draws
    assert "50.00  25.00     75.00" in with_draws
    assert f"\n{REID}\nbest epoch by R@1" in with_draws
    assert REID not in summary([record], "recall@1", 2, Path("runs/x"))


def lines_of_epochs(ks, scores, k_max):
    records = [
        {"epoch": epoch, "k": k, "recall@1": score, "seconds": {}}
        for epoch, (k, score) in enumerate(zip(ks, scores, strict=True), 1)
    ]
    shown = summary(records, "recall@1", k_max, Path("runs/x")).splitlines()
    return [" ".join(line.split()) for line in shown[2:5]]


def test_the_best_epoch_of_the_summary_has_the_clusters_asked_for_or_says_so():
    assert lines_of_epochs([1, 1, 2, 2], [0.7, 0.9, 0.6, 0.5], k_max=2) == [
        "last (epoch 4) 50.00",
        "best (epoch 3) 60.00",
        "best epoch by R@1 on the test classes; K = 2",
    ]
    assert lines_of_epochs([1, 1, 2, 2], [0.7, 0.9, 0.6, 0.5], k_max=4) == [
        "last (epoch 4) 50.00",
        "best (epoch 3, K = 2 of 4) 60.00",
        "best epoch by R@1 on the test classes; K = 2 of 4",
    ]
    assert lines_of_epochs([1, 1], [0.7, 0.6], k_max=1)[1:] == [
        "best (epoch 1) 70.00",
        "best epoch by R@1 on the test classes; K = 1",
    ]
