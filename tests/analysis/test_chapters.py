import csv
import dataclasses
import json
import math
import shutil
import sys

import pytest
import torch
import torch.nn.functional as F

from analysis.made_runs import PLAIN_UMAP, SETTINGS, made_subject
from divconq.analysis import Division, analyse, read_run, subspace, subspace_hits
from divconq.analysis.chapters.clusters import clusters_of, division_step, galleries, split_classes
from divconq.analysis.chapters.errors import errors_of
from divconq.analysis.chapters.projection import map_of
from divconq.analysis.chapters.spaces import geometry, space_of
from divconq.analysis.chapters.subspaces import shown_spaces, subspaces_of
from divconq.analysis.report.findings import collect_findings, to_json
from divconq.analysis.report.thumbnails import image_refs
from divconq.analysis.study import Study, short_names
from divconq.analysis.subject import sample
from divconq.config import Config
from divconq.runs import checkpoints
from divconq.runs.folder import Run
from divconq.train import train


@pytest.fixture(autouse=True)
def umap(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", PLAIN_UMAP)


@pytest.fixture(scope="module")
def runs(photos, tmp_path_factory):
    """A run with two subspaces, one without masks, one that never divides, and one with a gallery and cameras."""
    folder = tmp_path_factory.mktemp("runs")
    rows = [
        (file, file.parent.name, i % 2, "train" if number < 8 else ("gallery", "query")[i % 2])
        for number, kind in enumerate(sorted(photos.iterdir()))
        for i, file in enumerate(sorted(kind.iterdir()))
    ]
    with (folder / "shop.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "camera", "split"), *rows])
    config = SETTINGS.replace(data=str(photos))
    train(config, folder / "divided")
    train(config.replace(masks="none", epochs=2), folder / "unmasked")
    train(config.replace(k_max=1, epochs=1), folder / "whole")
    train(config.replace(data=str(folder / "shop.csv")), folder / "shop")
    return folder


def study(records, **options):
    """The findings of runs, and the images of the first."""
    opened = Study(records, **options)
    return collect_findings(opened), opened.images


@pytest.fixture
def copy(runs, tmp_path):
    def copied(name):
        shutil.copytree(runs / name, tmp_path / name)
        return tmp_path / name

    return copied


def nearest_by_hand(x, query, gallery, k):
    """The k nearest, by a loop; without a gallery among the others."""
    others = x if gallery is None else gallery
    apart = [
        (float((x[query] - others[j]).square().sum()), j)
        for j in range(len(others))
        if gallery is not None or j != query
    ]
    return [j for _, j in sorted(apart)[:k]]


def check_retrievals(retrievals, spaces, labels, searched, searched_labels):
    """Every image that a retrieval shows is the one that is nearest in that space."""
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


# Whole runs


def test_a_whole_run(runs, photos):
    record = read_run(runs / "divided")
    findings, images = study([record])
    assert (findings.dataset, findings.epoch, findings.missing) == ("photos", 3, ())
    assert (findings.train_images, findings.train_classes) == (48, 8)
    assert (findings.test_images, findings.test_classes) == (48, 8)
    assert list(images) == ["train", "test"]
    logged = record.metrics[-1]["recall@1"]
    assert findings.chapters["subspaces"].final_recall == pytest.approx(logged)
    assert findings.chapters["subspaces"].queries == 48
    assert len(findings.chapters["subspaces"].masks) == len(findings.chapters["subspaces"].recalls) == 2
    assert [step.k for step in findings.chapters["clusters"].divisions] == [2, 2]
    assert len(findings.chapters["clusters"].galleries) == 2
    assert findings.chapters["clusters"].factors is findings.chapters["subspaces"].factors is None
    (space,) = findings.chapters["spaces"]
    assert (space.name, space.train.images, space.test.images, space.test.dim) == ("divided", 48, 48, 16)
    assert len(space.cluster_dimensions) == 2
    assert (len(findings.chapters["map"].points), findings.chapters["map"].of) == (96, 96)
    assert findings.chapters["map"].splits == ("train",) * 48 + ("test",) * 48
    assert findings.chapters["map"].labels == tuple(
        torch.cat([images["train"].labels, images["test"].labels]).tolist()
    )
    assert findings.chapters["errors"].duplicates
    assert json.loads(to_json(findings))["spaces"][0]["name"] == "divided"
    for shown in image_refs(findings):
        some = images[shown.split]
        assert shown.path == some.paths[shown.index]
        assert shown.label == some.names[some.labels[shown.index]]


def test_training_is_what_was_logged(runs):
    record = read_run(runs / "divided")
    (training,) = study([record])[0].chapters["training"]
    assert training.curves["loss"] == ((1, 2, 3), tuple(row["loss"] for row in record.metrics))
    assert {"epoch", "seconds"}.isdisjoint(training.curves)
    assert set(training.curves) | {"epoch", "seconds"} == set(record.metrics[-1])
    assert training.seconds["train"] == pytest.approx(sum(row["seconds"]["train"] for row in record.metrics))
    assert training.config["k_max"] == 2
    assert training.missing == record.missing


def test_pictures_of_all_that_is_named(runs):
    said = []
    findings, pictures = analyse(
        [runs / "divided", runs / "divided" / ".." / "divided"], device="cpu", say=said.append
    )
    assert set(pictures) == {(shown.split, shown.index) for shown in image_refs(findings)}
    assert len(findings.chapters["training"]) == 1, "a folder counts once"
    assert said[0] == "embeddings of divided"
    assert said[-1] == "thumbnails"


def test_the_best_epoch(runs, copy):
    folder = copy("divided")
    state = checkpoints.load(folder)
    checkpoints.save(folder, "best", {**state, "epoch": 2})
    assert study([read_run(folder)], which="best")[0].epoch == 2


def test_a_gallery_and_cameras(runs):
    record = read_run(runs / "shop")
    findings, _ = study([record])
    assert findings.missing == (
        "Searches in this report include images of the same camera; the scores leave them out.",
    )
    assert (findings.test_images, findings.test_classes) == (48, 8)
    assert (
        findings.chapters["clusters"].factors.names
        == findings.chapters["subspaces"].factors.names
        == ("camera",)
    )
    assert len(findings.chapters["clusters"].factors.values) == 2
    found = [one.image for worst in findings.chapters["errors"].worst for one in worst.found]
    assert {image.split for image in found} == {"gallery"}
    assert findings.chapters["spaces"][0].test.images == 48
    assert findings.chapters["subspaces"].queries == 24
    assert set(findings.chapters["map"].splits) == {"train", "test", "gallery"}


# Runs that are compared


def test_other_runs_are_compared(runs):
    names = ["divided", "whole", "unmasked", "shop"]
    findings, _ = study([read_run(runs / name) for name in names])
    assert [space.name for space in findings.chapters["spaces"]] == ["divided", "whole", "unmasked"]
    assert [training.name for training in findings.chapters["training"]] == names
    assert findings.missing == ("Only the training of shop is compared: it has other test images.",)
    alone = study([read_run(runs / "whole")])[0].chapters["spaces"][0]
    assert dataclasses.replace(findings.chapters["spaces"][1], train=alone.train) == alone
    assert findings.chapters["spaces"][1].train == alone.train


def test_the_baseline_is_the_first_run_without_division(runs):
    for others, expected in (
        (["shop", "whole", "unmasked"], "whole"),
        (["unmasked", "whole"], "unmasked"),
        (["shop"], None),
    ):
        opened = Study([read_run(runs / name) for name in ("divided", *others)])
        assert getattr(opened.baseline, "name", None) == expected


# What is missing


def test_a_run_that_never_divides(runs):
    findings, _ = study([read_run(runs / "whole")])
    assert findings.chapters["clusters"] is None
    assert findings.chapters["subspaces"] is None
    assert findings.missing == ("There are no subspaces to compare: K is 1.",)
    assert len(findings.chapters["spaces"][0].cluster_dimensions) == 1
    assert findings.chapters["errors"] is not None


def test_a_run_without_masks(runs):
    findings, _ = study([read_run(runs / "unmasked")])
    assert len(findings.chapters["clusters"].galleries) == 2
    assert findings.chapters["subspaces"] is None
    assert (
        "There are no subspaces: the run was trained with masks none."
        in findings.chapters["training"][0].missing
    )


def test_a_run_without_checkpoint_has_curves_and_divisions(copy):
    folder = copy("divided")
    for name in ("last.pt", "previous.pt"):
        (folder / name).unlink(missing_ok=True)
    findings, _ = study([read_run(folder)])
    assert findings.epoch is None
    assert findings.chapters["subspaces"] is findings.chapters["map"] is findings.chapters["errors"] is None
    assert findings.chapters["spaces"] == ()
    assert findings.chapters["clusters"].galleries == findings.chapters["clusters"].split_classes == ()
    assert not math.isnan(findings.chapters["clusters"].divisions[0].nmi_classes)
    assert "loss" in findings.chapters["training"][0].curves
    (sentence,) = findings.missing
    assert sentence.startswith("The network of divided cannot be analysed: ")
    assert "holds no last.pt" in sentence


def test_a_run_that_stopped_at_once(tmp_path, photos):
    run = Run.create(tmp_path / "run", SETTINGS.replace(data=str(photos)))
    findings, pictures = analyse([run.folder], device="cpu")
    assert findings.chapters["training"][0].curves == {}
    assert findings.chapters["clusters"] is None
    assert pictures == {}
    assert json.loads(to_json(findings))["epoch"] is None


def test_data_that_cannot_be_found(copy):
    folder = copy("divided")
    config = (folder / "config.yaml").read_text()
    record = read_run(folder)
    (folder / "config.yaml").write_text(config.replace(record.config.data.name, "/nowhere/photos"))
    findings, pictures = analyse([folder], device="cpu")
    (sentence,) = findings.missing
    assert sentence.startswith("The images cannot be opened: no dataset is called '/nowhere/photos'")
    assert (findings.train_images, findings.test_classes, findings.dataset) == (0, 0, "photos")
    assert math.isnan(findings.chapters["clusters"].divisions[0].nmi_classes)
    assert not math.isnan(findings.chapters["clusters"].divisions[1].kept)
    assert findings.chapters["clusters"].galleries == ()
    assert pictures == {}
    again, _ = study([read_run(copy("whole")), read_run(folder)])
    assert any(line.startswith("Only the training of divided is compared: ") for line in again.missing)


def test_clusters_of_other_images(copy):
    folder = copy("divided")
    state = checkpoints.load(folder)
    division = state["divide_and_conquer"]["_extra_state"]
    division["clusters"] = division["clusters"][:-1]
    checkpoints.save(folder, "last", state)
    findings, _ = study([read_run(folder)])
    assert findings.missing == (
        "The clusters of divided cannot be shown: the run divided 47 images, and the dataset now has 48.",
    )
    assert findings.chapters["clusters"].galleries == ()
    assert findings.chapters["spaces"][0].cluster_dimensions == ()
    assert findings.chapters["subspaces"] is not None


def test_a_backbone_from_a_file_that_is_not_given(copy):
    folder = copy("divided")
    text = (folder / "config.yaml").read_text()
    text = text.replace("backbone: small", "backbone: mine").replace(
        "import_file: null", "import_file: /x/mine.py"
    )
    (folder / "config.yaml").write_text(text)
    (sentence,) = study([read_run(folder)])[0].missing
    assert "unknown backbone" in sentence
    assert sentence.endswith(" Its training used --import mine.py; pass it again.")


def test_without_umap(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    assert map_of(made_subject()) == ('There is no map: UMAP is not installed; pip install "divconq[umap]".')


def test_a_map_of_too_few_images():
    assert (
        map_of(made_subject({"train": 4, "test": 3}))
        == "There is no map: it needs at least 8 images, and there are 7."
    )


def test_a_map_of_a_sample():
    subject = made_subject({"train": 40, "test": 30, "gallery": 20})
    plane = map_of(subject, most=25, seed=3)
    assert plane.of == 90
    x = torch.cat(list(subject.x.values()))
    splits = ["train"] * 40 + ["test"] * 30 + ["gallery"] * 20
    labels = torch.cat([images.labels for images in subject.images.values()])
    chosen = sample(90, 25, seed=3).tolist()
    assert [tuple(point) for point in x[chosen, :2].tolist()] == list(plane.points)
    assert plane.splits == tuple(splits[i] for i in chosen)
    assert plane.labels == tuple(labels[chosen].tolist())
    assert len(set(plane.splits)) == 3


@pytest.mark.slow
def test_a_map_by_umap(monkeypatch):
    monkeypatch.delitem(sys.modules, "umap")
    pytest.importorskip("umap")
    subject = made_subject({"train": 60, "test": 40})
    plane = map_of(subject)
    assert plane == map_of(subject)
    assert all(math.isfinite(value) for point in plane.points for value in point)
    apart = made_subject({"train": 8, "test": 1})
    assert len(map_of(apart).points) == 9


# Clusters


def test_galleries_are_nearest_to_the_mean():
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


def test_classes_that_are_split_show_each_of_their_clusters():
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
        for c in range(4):  # no cluster shows two more than another that has more to show
            assert all(counts[c] <= counts[o] + 1 for o in range(4) if counts[o] < present[o])


def test_divisions_step_by_step():
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
    assert found.mean_size == (1, 2, 0, 1), "of the divisions into the final K"
    assert clusters_of([], classes, None) is None


# Subspaces


@pytest.mark.parametrize("gallery", [False, True])
@pytest.mark.parametrize("conquer", ["sum", "plain"])
def test_subspaces_by_hand(gallery, conquer):
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


def test_a_sample_of_queries_is_asked():
    subject = made_subject({"train": 5, "test": 300}, classes=40)
    some = subspaces_of(subject, queries=50, seed=1)
    assert some.queries == 50
    labels = subject.images["test"].labels
    able = [i for i in range(300) if int((labels == labels[i]).sum()) > 1]
    asked = torch.tensor(able)[sample(len(able), 50, seed=1)]
    hits = subspace_hits(subject.f["test"], labels, subject.masks, queries=asked)
    assert some.recalls == pytest.approx(hits.recalls())


def test_of_many_subspaces_those_are_shown_that_answer_otherwise():
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


def test_geometry_of_a_sample_is_that_of_the_sampled_by_hand():
    subject = made_subject({"train": 60, "test": 50}, classes=6)
    x, labels = subject.x["train"], subject.images["train"].labels
    found = geometry(x, labels, many=30, queries=20, seed=2)
    chosen = sample(60, 20, seed=2).tolist()
    apart = torch.cdist(x.double(), x.double()).fill_diagonal_(math.inf)
    nearest = apart[chosen].sort(1).values
    assert found.ed1 == pytest.approx(float(nearest[:, 0].mean()), abs=1e-5)
    assert found.ed10 == pytest.approx(float(nearest[:, :10].mean()), abs=1e-5)
    ratios = [
        float(apart[i][labels == labels[i]].min() / apart[i][labels != labels[i]].min()) for i in chosen
    ]
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


# Errors


@pytest.mark.parametrize("gallery", [False, True])
def test_errors_by_hand(gallery):
    sizes = {"train": 30, "test": 60, **({"gallery": 50} if gallery else {})}
    subject = made_subject(sizes, classes=4)
    subject.f["test"][3] = subject.f["train"][7]  # a copy
    points = [("test", i) for i in range(60)] + ([("gallery", i) for i in range(50)] if gallery else [])
    split = "gallery" if gallery else "test"
    x, y = subject.x["test"], subject.x["gallery"] if gallery else None
    labels, theirs = subject.images["test"].labels, subject.images[split].labels
    errors = errors_of(subject)

    rankings = [nearest_by_hand(x, i, y, 200) for i in range(60)]
    ranks = [
        1 + next(r for r, j in enumerate(found) if theirs[j] == labels[i]) for i, found in enumerate(rankings)
    ]
    order = sorted((i for i in range(60) if ranks[i] > 1), key=lambda i: (-ranks[i], i))
    assert [(worst.query.index, worst.rank) for worst in errors.worst] == [(i, ranks[i]) for i in order[:12]]
    for worst in errors.worst:
        assert [one.image.index for one in worst.found] == rankings[worst.query.index][:5]
        assert not worst.found[0].right

    for pair in errors.confused:
        query, found = pair.examples
        assert (query.split, found.split) == ("test", split)
        assert found.index == rankings[query.index][0]
        assert {query.label, found.label} == {pair.first, pair.second}
        assert pair.first != pair.second
    assert errors.confused

    every = torch.cat([x, y]) if gallery else x
    every_label = torch.cat([labels, theirs]) if gallery else labels
    near = [nearest_by_hand(every, i, None, 10) for i in range(len(every))]
    for wrong in errors.mislabelled:
        place = points.index((wrong.image.split, wrong.image.index))
        assert [(image.split, image.index) for image in wrong.neighbours] == [
            points[j] for j in near[place][:5]
        ]
        agreeing = [j for j in near[place] if subject.images["test"].names[every_label[j]] == wrong.suggested]
        assert len(agreeing) >= 8
        assert wrong.suggested != wrong.image.label

    across = [pair for pair in errors.duplicates if pair.across == "splits"]
    assert (across[0].first.split, across[0].first.index) == ("test", 3)
    assert (across[0].second.split, across[0].second.index) == ("train", 7)
    assert across[0].distance == pytest.approx(0, abs=1e-3)
    for pair in errors.duplicates:
        assert (pair.second.split == "train") == (pair.across == "splits")
        if pair.across == "classes":
            assert pair.first.label != pair.second.label


def test_wrong_labels_and_copies_in_another_class_are_found():
    f = F.normalize(torch.eye(2).repeat_interleave(12, 0) + 0.1 * torch.rand(24, 2))
    subject = made_subject({"train": 5, "test": 24}, d=2, classes=2, test=f)
    labels = torch.arange(24) // 12
    labels[4] = 1
    subject.images["test"].labels.copy_(labels)
    f[20] = f[4]
    labels[20] = 0
    subject.images["test"].labels.copy_(labels)
    subject = dataclasses.replace(subject, masks=torch.ones(1, 2))
    errors = errors_of(subject)
    assert (errors.mislabelled[0].image.index, errors.mislabelled[0].suggested) == (4, "class 0")
    pairs = [(pair.first.index, pair.second.index) for pair in errors.duplicates if pair.across == "classes"]
    assert pairs[0] == (4, 20)


def test_ten_thousand_classes():
    subject = made_subject({"train": 12_000, "test": 10_500}, d=8, classes=10_000, noise=0.2)
    subspaces = subspaces_of(subject)
    assert subspaces.queries == 2000
    assert len(split_classes(subject)) == 8
    assert len(errors_of(subject).worst) == 12
    assert space_of(subject).train.images == 12_000


# Names


def test_short_names_tell_runs_apart(tmp_path):
    paths = [tmp_path / part for part in ("a/run", "b/run", "c", "a/x/run")]
    assert short_names(paths) == ["a/run", "b/run", "c", "x/run"]
    assert short_names(paths[:1]) == ["run"]
