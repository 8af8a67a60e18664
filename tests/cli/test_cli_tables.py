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
    with_draws = summary([record | {"reid_recall@1": 0.75}], "recall@1", Path("runs/x"))
    assert "R@1    NMI  reid R@1" in with_draws
    assert "50.00  25.00     75.00" in with_draws
    assert f"\n{REID}\nbest epoch by R@1" in with_draws
    assert REID not in summary([record], "recall@1", Path("runs/x"))
