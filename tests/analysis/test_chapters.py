"""What each chapter computes, checked by hand on made-up embeddings."""

import dataclasses
import math
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.decomposition import PCA

from analysis.made_runs import PLAIN_UMAP, made_subject, nearest_by_hand
from divconq.analysis import Division, subspace, subspace_hits
from divconq.analysis.chapters.clusters import clusters_of, division_step, galleries, split_classes
from divconq.analysis.chapters.projection import map_of, principal_plane
from divconq.analysis.chapters.spaces import geometry, space_of
from divconq.analysis.chapters.subspaces import shown_spaces, subspaces_of
from divconq.analysis.subject import sample
from divconq.config import Config


@pytest.fixture(autouse=True)
def umap(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", PLAIN_UMAP)


def check_retrievals(retrievals, spaces, labels, searched, searched_labels):
    """Check that every shown image is the nearest in its space."""
    for retrieval in retrievals:
        query = retrieval.query.index
        assert retrieval.query.split == "test"
        for name, found in retrieval.spaces:
            x, gallery = spaces[name]
            assert [one.image.index for one in found] == nearest_by_hand(x, query, gallery, 5)
            assert {one.image.split for one in found} == {searched}
            assert [one.right for one in found] == [
                bool(searched_labels[one.image.index] == labels[query]) for one in found
            ]


# Map


def test_without_umap_the_map_is_a_projection_by_pca(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    subject = made_subject()
    plane = map_of(subject)
    assert plane.method == "PCA"
    x = torch.cat(list(subject.x.values())).double().numpy()
    wanted = PCA(2).fit_transform(x)
    found = np.array(plane.points)
    assert np.abs(found) == pytest.approx(np.abs(wanted), abs=1e-6)
    assert plane == map_of(subject)


@pytest.mark.parametrize("d", [1, 2, 5])
def test_the_principal_plane_keeps_the_largest_variance(d):
    x = torch.randn(30, d, generator=torch.Generator().manual_seed(d)) * torch.arange(1.0, d + 1)
    plane = principal_plane(x)
    assert plane.shape == (30, 2)
    variances = torch.linalg.eigvalsh(
        x.double().T.cov(correction=0) if d > 1 else x.double().var(correction=0)[None, None]
    )
    largest = [*variances.flip(0).tolist(), 0.0][:2]
    assert plane.var(0, correction=0).tolist() == pytest.approx(largest, abs=1e-9)
    assert torch.allclose(principal_plane(-x), -plane), "the sign follows the data"


def test_a_map_of_too_few_images():
    assert map_of(made_subject({"train": 4, "test": 3})) is None
    assert len(map_of(made_subject({"train": 4, "test": 4})).points) == 8


def test_a_map_of_a_sample():
    subject = made_subject({"train": 40, "test": 30, "gallery": 20})
    plane = map_of(subject, most=25, seed=3)
    assert plane.of == 90
    x = torch.cat(list(subject.x.values()))
    splits = ["train"] * 40 + ["test"] * 30 + ["gallery"] * 20
    labels = torch.cat([images.labels for images in subject.images.values()])
    some = sample(90, 25, seed=3).tolist()
    assert [tuple(point) for point in x[some, :2].tolist()] == list(plane.points)
    assert plane.splits == tuple(splits[i] for i in some)
    assert plane.labels == tuple(labels[some].tolist())
    assert len(set(plane.splits)) == 3


@pytest.mark.slow
def test_umap_gives_the_same_map_twice(monkeypatch):
    monkeypatch.delitem(sys.modules, "umap")
    pytest.importorskip("umap")
    subject = made_subject({"train": 60, "test": 40})
    plane = map_of(subject)
    assert plane == map_of(subject)
    assert all(math.isfinite(value) for point in plane.points for value in point)
    gaps = made_subject({"train": 8, "test": 1})
    assert len(map_of(gaps).points) == 9


# Clusters


def test_galleries_show_the_images_nearest_to_the_mean():
    clusters = torch.randint(3, (40,), generator=torch.Generator().manual_seed(1))
    subject = made_subject(k=4, clusters=clusters)  # the last is empty
    x = subject.x["train"].double()
    for cluster, shown in enumerate(galleries(subject, most=5)):
        members = [i for i in range(40) if clusters[i] == cluster]
        if members:
            mean = sum(x[i] for i in members) / len(members)
            members.sort(key=lambda i: float((x[i] - mean).norm()))
        assert [image.index for image in shown] == members[:5]
        assert {(image.split, image.cluster) for image in shown} <= {("train", cluster)}
    assert galleries(subject)[3] == ()


def test_split_classes_show_images_of_all_their_clusters():
    subject = made_subject({"train": 60, "test": 9}, k=4, classes=3)
    labels = subject.images["train"].labels
    found = split_classes(subject, top=2, most=7)
    assert len(found) == 2
    for split in found:
        number = subject.images["train"].names.index(split.label)
        members = (labels == number).nonzero().flatten().tolist()
        assert split.images == len(members)
        shown = [(image.cluster, image.index) for image in split.examples]
        assert shown == sorted(shown)
        assert len(shown) == 7
        assert {index for _, index in shown} <= set(members)
        assert all(int(subject.clusters[index]) == cluster for cluster, index in shown)
        counts = [sum(cluster == c for cluster, _ in shown) for c in range(4)]
        present = [sum(int(subject.clusters[i]) == c for i in members) for c in range(4)]
        for c in range(4):  # clusters take turns until they have no more images
            assert all(counts[c] <= counts[o] + 1 for o in range(4) if counts[o] < present[o])


def test_each_division_is_compared_with_the_previous_one():
    masks, classes = torch.ones(2, 4), torch.tensor([0, 0, 1, 1])
    first = Division(2, torch.tensor([0, 0, 1, 1]), masks)
    second = Division(4, torch.tensor([1, 1, 0, 3]), torch.ones(4, 4))
    other = Division(6, torch.tensor([1, 0]), masks)
    step = division_step(first, None, classes)
    assert (step.epoch, step.k, step.nmi_classes, step.sizes) == (2, 2, pytest.approx(1), (2, 2))
    assert math.isnan(step.nmi_previous)
    assert math.isnan(step.kept)
    step = division_step(second, first, None)
    assert (step.kept, step.sizes) == (0.75, (1, 2, 0, 1))
    assert 0 < step.nmi_previous < 1
    assert math.isnan(step.nmi_classes)
    step = division_step(other, second, classes)
    assert math.isnan(step.nmi_previous)
    assert math.isnan(step.nmi_classes)
    found = clusters_of([first, second], classes, None)
    assert found.mean_size == (1, 2, 0, 1), "mean over the divisions into the final K"
    assert clusters_of([], classes, None) is None


# Subspaces


@pytest.mark.parametrize("gallery", [False, True])
@pytest.mark.parametrize("conquer", ["sum", "plain"])
def test_subspaces_match_plain_loops(gallery, conquer):
    sizes = {"train": 10, "test": 60, **({"gallery": 50} if gallery else {})}
    config = Config.of(k_max=4, conquer=conquer)
    subject = made_subject(sizes, k=4, classes=12, config=config)
    baseline = made_subject(sizes, k=1, classes=12, seed=9)
    found = subspaces_of(subject, baseline)
    labels, f, masks = subject.images["test"].labels, subject.f, subject.masks
    theirs = subject.images["gallery"].labels if gallery else None
    hits = subspace_hits(
        f["test"], labels, masks, gallery=f.get("gallery"), gallery_labels=theirs, final=subject.final
    )
    assert found.recalls == pytest.approx(hits.recalls())
    assert found.final_recall == pytest.approx(hits.final_recall())
    assert found.queries == len(hits.queries)
    wrong = 4 - hits.each.sum(0)
    assert found.corrected == sum(bool(hits.final[i]) and int(wrong[i]) > 2 for i in range(found.queries))
    assert found.misled == sum(not hits.final[i] and int(wrong[i]) < 2 for i in range(found.queries))
    kinds = [retrieval.kind for retrieval in found.retrievals]
    assert kinds == ["corrected"] * min(8, found.corrected) + ["misled"] * min(4, found.misled)
    assert kinds
    final = torch.ones(6) if conquer == "plain" else masks.sum(0)
    spaces = {f"subspace {k + 1}": masks[k] for k in range(4)} | {"sum": final}
    places = {
        name: (subspace(f["test"], mask), subspace(f["gallery"], mask) if gallery else None)
        for name, mask in spaces.items()
    }
    places["baseline"] = baseline.x["test"], baseline.x.get("gallery")
    assert [name for name, _ in found.retrievals[0].spaces] == [*spaces, "baseline"]
    searched = "gallery" if gallery else "test"
    check_retrievals(found.retrievals, places, labels, searched, subject.images[searched].labels)
    assert found.masks == tuple(tuple(row) for row in masks.tolist())


def test_a_sample_of_queries_searches():
    subject = made_subject({"train": 5, "test": 300}, classes=40)
    some = subspaces_of(subject, queries=50, seed=1)
    assert some.queries == 50
    labels = subject.images["test"].labels
    able = [i for i in range(300) if int((labels == labels[i]).sum()) > 1]
    asked = torch.tensor(able)[sample(len(able), 50, seed=1)]
    hits = subspace_hits(subject.f["test"], labels, subject.masks, queries=asked)
    assert some.recalls == pytest.approx(hits.recalls())


def test_with_many_subspaces_the_differing_ones_are_shown():
    found = {f"subspace {k}": [k % 3, 9] for k in range(1, 13)} | {"sum": [0, 9], "baseline": [7]}
    assert shown_spaces(found) == [
        *(f"subspace {k}" for k in (1, 2, 4, 5, 7, 8, 10, 11)),
        "sum",
        "baseline",
    ]
    assert shown_spaces(found, most=10)[2:4] == ["subspace 3", "subspace 4"]
    subject = made_subject({"train": 10, "test": 80}, k=16, d=20, classes=20)
    shown = [name for name, _ in subspaces_of(subject).retrievals[0].spaces]
    assert len(shown) == 9


def test_factors_of_clusters_and_subspaces():
    side = (torch.arange(40) % 2).tolist()
    factors = {"train": {"side": side, "pair": torch.zeros(40, 2)}, "test": {"side": side}}
    f = F.normalize(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]).repeat(20, 1) + 0.01 * torch.randn(40, 2))
    subject = made_subject(
        {"train": 40, "test": 40}, k=2, d=2, factors=factors, clusters=torch.tensor(side), train=f, test=f
    )
    subject = dataclasses.replace(subject, masks=torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
    division = Division(1, torch.tensor(side), subject.masks)
    found = clusters_of([division], None, subject).factors
    assert found.names == ("side",)
    assert found.values.tolist() == [[pytest.approx(1)], [pytest.approx(1)]]
    assert subspaces_of(subject).factors.values[0].tolist() == [pytest.approx(1)]


# Geometry


def test_geometry_of_a_sample_matches_plain_loops():
    subject = made_subject({"train": 60, "test": 50}, classes=6)
    x, labels = subject.x["train"], subject.images["train"].labels
    found = geometry(x, labels, many=30, queries=20, seed=2)
    some = sample(60, 20, seed=2).tolist()
    gaps = torch.cdist(x.double(), x.double()).fill_diagonal_(math.inf)
    nearest = gaps[some].sort(1).values
    assert found.ed1 == pytest.approx(float(nearest[:, 0].mean()), abs=1e-5)
    assert found.ed10 == pytest.approx(float(nearest[:, :10].mean()), abs=1e-5)
    ratios = [float(gaps[i][labels == labels[i]].min() / gaps[i][labels != labels[i]].min()) for i in some]
    assert found.ratio == pytest.approx(sum(ratios) / len(ratios), abs=1e-4)
    whole = geometry(x, labels)
    assert whole == geometry(x, labels, subject_ranking(x), many=30, queries=20)
    assert (found.images, found.queries, whole.queries) == (60, 20, 60)
    assert (found.intra, found.inter) == (whole.intra, whole.inter)
    assert found.effective_dimension == whole.effective_dimension
    assert found.ed1 != whole.ed1


def subject_ranking(x):
    return torch.tensor([nearest_by_hand(x, i, None, 10) for i in range(len(x))])


def test_few_points_have_no_tenth_neighbour():
    found = geometry(F.normalize(torch.randn(4, 3)), torch.tensor([0, 0, 1, 1]))
    assert math.isnan(found.ed10)
    assert not math.isnan(found.ed1)


def test_the_space_of_a_subject():
    subject = made_subject({"train": 40, "test": 30, "gallery": 20})
    space = space_of(subject)
    assert space == space_of(subject, thorough=False)
    points = torch.cat([subject.x["test"], subject.x["gallery"]])
    labels = torch.cat([subject.images["test"].labels, subject.images["gallery"].labels])
    assert space.test == geometry(points, labels)
    assert space_of(dataclasses.replace(subject, clusters=None)).cluster_dimensions == ()
