"""Chapters that compare several runs: the consistency of their clusters, and their maps."""

import dataclasses
import sys
from itertools import pairwise, permutations
from pathlib import Path

import pytest
import torch
from sklearn.metrics import normalized_mutual_info_score

from analysis.made_runs import PLAIN_UMAP, made_subject
from divconq.analysis.chapters import clusters, projection
from divconq.analysis.chapters.consistency import consistency_of
from divconq.analysis.chapters.training import Training
from divconq.analysis.run_record import Division, RunRecord
from divconq.analysis.study import Study
from divconq.config import Config


@pytest.fixture(autouse=True)
def umap(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", PLAIN_UMAP)


def divisions(every, ks, n=20, seed=0):
    generator = torch.Generator().manual_seed(seed + every)
    return tuple(
        Division(every * (1 + place), torch.randint(k, (n,), generator=generator), torch.ones(k, 4))
        for place, k in enumerate(ks)
    )


def record(every, ks=(), **settings):
    config = Config.of(divide_every=every, **settings)
    return RunRecord(Path(f"run{every}"), config, (), divisions(every, ks), ())


def kept_by_hand(new, old, k):
    """The share of images with their old cluster, if the clusters are named for the largest total IoU."""

    def iou(i, j):
        either = (new == i) | (old == j)
        return float(((new == i) & (old == j)).sum() / either.sum()) if either.any() else 0.0

    names = max(permutations(range(k)), key=lambda names: sum(iou(i, names[i]) for i in range(k)))
    return float((torch.tensor(names)[new] == old).double().mean())


def test_consistency_against_scikit_learn_and_a_plain_search():
    runs = [record(3, (2, 4, 4)), record(1, (2, 2, 4, 4)), record(2, (2,)), record(5)]
    found = consistency_of(["three", "one", "short", "whole"], runs)
    assert [(line.run, line.name, line.divide_every, line.epochs) for line in found] == [
        (1, "E = 1", 1, (2, 3, 4)),
        (0, "E = 3", 3, (6, 9)),
    ]
    for line in found:
        steps = runs[line.run].divisions
        for place, (old, new) in enumerate(pairwise(steps)):
            nmi = normalized_mutual_info_score(new.clusters, old.clusters)
            assert line.nmi[place] == pytest.approx(nmi)
            ancestors = new.clusters // (new.k // old.k)
            assert line.kept[place] == pytest.approx(kept_by_hand(ancestors, old.clusters, old.k))


def test_runs_with_the_same_e_are_named_by_their_folders():
    runs = [record(2, (2, 4)), record(2, (2, 4), seed=1), record(1, (2, 4))]
    assert [line.name for line in consistency_of(["a", "b", "c"], runs)] == ["E = 1", "E = 2, a", "E = 2, b"]
    assert [line.name for line in consistency_of(["a", "b"], runs[:2])] == ["a", "b"]


def test_one_run_alone_has_no_comparison():
    assert consistency_of(["a", "b"], [record(2, (2, 4)), record(1, (2,))]) == ()


def test_divisions_of_other_images_are_passed_over():
    changed = divisions(1, (2, 4)) + tuple(
        dataclasses.replace(division, epoch=division.epoch + 2) for division in divisions(1, (4, 4), n=9)
    )
    run = dataclasses.replace(record(1), divisions=changed)
    (line, _) = consistency_of(["a", "b"], [run, record(2, (2, 4))])
    assert line.epochs == (2, 4)


class MadeStudy(Study):
    """A study of subjects that are there already."""

    def __init__(self, subject, *others):
        super().__init__([each.record for each in (subject, *others)])
        self.names = [each.name for each in (subject, *others)]
        self.images, self.subject, self.rest = {}, subject, others

    def others(self):
        yield from self.rest


def subject(name, k_max, seed=0, **sizes):
    made = made_subject({"train": 40, "test": 30, **sizes}, seed=seed, config=Config.of(k_max=k_max))
    return dataclasses.replace(made, name=name)


def test_maps_show_the_same_images_of_every_run_ordered_by_k_max(monkeypatch):
    monkeypatch.setattr(projection, "sample", lambda n, most, seed: torch.arange(0, n, 3))
    first, second, third = subject("a", 32, seed=1), subject("b", 1, seed=2), subject("c", 4, seed=3)
    found = projection.compute(MadeStudy(first, second, third))
    assert [run.name for run in found.runs] == ["K_max = 1", "K_max = 4", "K_max = 32"]
    assert found.runs[2].points == found.points
    for run, one in zip(found.runs, (second, third, first), strict=True):
        x = torch.cat(list(one.x.values()))[::3]
        assert torch.tensor(run.points) == pytest.approx(x[:, :2])
    assert len(found.labels) == len(found.points) == 24


def test_a_run_with_other_training_images_has_no_map_beside_the_first():
    study = MadeStudy(subject("a", 4), subject("b", 4, train=41))
    assert projection.compute(study).runs == ()
    assert study.missing == ["The map of b is left out: it has other training images."]


def test_without_umap_every_map_is_by_pca(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    study = MadeStudy(subject("a", 4), subject("b", 4, seed=1))
    found = projection.compute(study)
    assert (found.method, [run.name for run in found.runs]) == ("PCA", ["a", "b"])
    assert study.missing == [
        'The map is a projection by PCA: UMAP is not installed; pip install "divconq[umap]".'
    ]


def test_too_few_images_are_said():
    study = MadeStudy(subject("a", 4, train=3, test=2))
    assert projection.compute(study) is None
    assert study.missing == ["There is no map: it needs at least 8 images."]


def test_a_first_run_without_divisions_is_said():
    study = MadeStudy(subject("a", 1), *(subject(str(every), 4) for every in (1, 2)))
    study.records[1:] = [record(1, (2, 4)), record(2, (2, 4))]
    assert clusters.compute(study) is None
    assert study.missing == ["The clusters of several runs are compared only if the first run has divisions."]


@pytest.mark.parametrize(
    ("ks", "k_max", "best"),
    [
        ((1, 1, 2, 2), 2, (3, 0.5, "")),
        ((1, 1, 2, 2), 4, (3, 0.5, "K = 2 of 4")),
        ((1, 1, 1, 1), 1, (2, 0.9, "")),
        ((4, 4, 4, 4), 4, (2, 0.9, "")),
        ((), 4, (2, 0.9, "")),
    ],
)
def test_the_best_epoch_of_the_report(ks, k_max, best):
    curves = {"recall@1": ((1, 2, 3, 4), (0.8, 0.9, 0.5, 0.4)), "k": (tuple(range(1, len(ks) + 1)), ks)}
    run = Training("run", {"k_max": k_max}, curves, (), {}, ())
    score = run.score("recall@1")
    assert (score.best_epoch, score.best, score.fewer_clusters) == best
    from divconq.analysis.chapters.training import summary

    fewer = f" ({best[2]})" if best[2] else ""
    assert next(iter(summary((run,)))).endswith(
        f"; the best epoch, {best[0]}{fewer}, reached {100 * best[1]:.1f}%."
    )
