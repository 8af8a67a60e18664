import dataclasses

import pytest
import torch

from divconq.analysis import generalisation
from divconq.data import ImageSet
from divconq.runs.folder import Run
from divconq.train import train
from divconq.training.scoring import train_recall
from divconq.training.setup import Job, prepare

TIMINGS = ("images_per_s", "seconds")


def slow_recall(x, labels, cameras=None):
    """Return Recall@1 over the images that have a positive, computed with loops."""
    hits = []
    for i in range(len(x)):
        others = [j for j in range(len(x)) if j != i]
        if cameras is not None:
            others = [j for j in others if labels[j] != labels[i] or cameras[j] != cameras[i]]
        if any(labels[j] == labels[i] for j in others):
            nearest = min(others, key=lambda j: float((x[i].double() - x[j].double()).square().sum()))
            hits.append(bool(labels[nearest] == labels[i]))
    return sum(hits) / len(hits)


def recall(job, images, **changes):
    config = job.config.replace(**changes)
    return train_recall(config, job.embed(images), images)


def with_cameras(images, cameras):
    return dataclasses.replace(images, factors={**images.factors, "camera": cameras})


def test_train_recall_equals_plain_loops(tiny):
    job = prepare(tiny)
    x = job.embed(job.train)
    assert recall(job, job.train) == {"train_recall@1": pytest.approx(slow_recall(x, job.train.labels))}


def test_train_recall_follows_same_camera_setting(tiny):
    job = prepare(tiny)
    x, labels = job.embed(job.train), job.train.labels
    cameras = torch.arange(len(labels)) % 6 // 3  # two cameras, three images of a class each
    images: ImageSet = with_cameras(job.train, cameras)
    dropped, kept = slow_recall(x, labels, cameras), slow_recall(x, labels)
    assert dropped != kept
    assert recall(job, images) == {"train_recall@1": pytest.approx(dropped)}
    assert recall(job, images, same_camera="keep") == {"train_recall@1": pytest.approx(kept)}


def test_train_recall_is_empty_without_positives(tiny):
    job = prepare(tiny)
    assert recall(job, with_cameras(job.train, job.train.labels)) == {}


@pytest.mark.parametrize(
    ("changes", "passes"),
    [
        ({}, 4),  # one for each evaluation, and three divisions that need none
        ({"cluster_on": "features"}, 4 + 3),
        ({"eval_every": 2}, 2 + 2),  # the divisions before epochs 2 and 4 come after one without
        ({"train_recall": False}, 3),
    ],
)
def test_division_reuses_embeddings_of_evaluation(tiny, tmp_path, monkeypatch, changes, passes):
    embedded = []

    def embed(job, images, *, features=False):
        embedded.append(images is job.train)
        return real(job, images, features=features)

    real = Job.embed
    monkeypatch.setattr(Job, "embed", embed)
    train(tiny.replace(**({"train_recall": True} | changes)), tmp_path / "run")
    assert embedded == passes * [True]


def test_train_recall_is_logged_and_changes_nothing_else(tiny, tmp_path):
    on = train(tiny.replace(eval_every=2, train_recall=True), tmp_path / "on")
    off = train(tiny.replace(eval_every=2, train_recall=False), tmp_path / "off")
    assert [record["epoch"] for record in on if "train_recall@1" in record] == [2, 4]
    assert [(epoch, test) for epoch, _, test in generalisation(on)] == [
        (record["epoch"], record["recall@1"]) for record in off if "recall@1" in record
    ]
    ignored = (*TIMINGS, "train_recall@1")
    assert [{n: v for n, v in record.items() if n not in ignored} for record in on] == [
        {n: v for n, v in record.items() if n not in ignored} for record in off
    ]
    a, b = (Run.open(tmp_path / name).load() for name in ("on", "off"))
    for part in ("model", "divide_and_conquer"):
        tensors = [name for name in a[part] if name != "_extra_state"]
        assert all(torch.equal(a[part][name], b[part][name]) for name in tensors), part


def test_train_recall_may_change_on_resume(tiny, tmp_path, capsys):
    from divconq.cli import main

    train(tiny.replace(epochs=1, train_recall=False), tmp_path / "run")
    main(["train", "--resume", str(tmp_path / "run"), "--epochs", "2", "--train-recall"])
    said = capsys.readouterr()
    assert "changed: train_recall from False to True (the result stays the same)" in said.err
    assert ["train_recall@1" in record for record in Run.open(tmp_path / "run").metrics()] == [False, True]
