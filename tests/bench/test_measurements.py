import json
import os
import sys

import pytest

from divconq.bench import PARTS, Setup, default_sizes, measure, parse_parts, text
from divconq.bench.photos import files_of, first, image_files
from divconq.cli import main
from divconq.data import open_dataset

TINY = {"image_size": 16, "batch": 12, "images": 40, "dim": 8, "rounds": 3, "batches": 1}
TINY |= {"clustered": 60, "searched": 150, "evaluated": (400,)}


@pytest.fixture(scope="module")
def report(photos):
    setup = Setup(default_sizes("cpu", **TINY), data=str(photos), device="cpu", precision="fp32")
    return measure(setup)


def test_the_report_is_json_and_has_all_parts(report):
    assert json.loads(json.dumps(report)) == report
    assert {"date", "hardware", "cpus", "torch", "code"} <= report.keys()
    assert {"training", "embedding", "kmeans", "knn", "nmi", "memory"} <= report.keys()
    assert report["images"] == {"data": "photos", "count": 40, "classes": 7}
    assert report["knn"]["classes"] == report["nmi"]["classes"] == 28
    assert [row["points"] for row in report["memory"]] == [400]


def test_ratios_are_those_of_the_rates(report):
    training = report["training"]
    for name in ("bare", "ours", "plain"):
        assert training[name]["images_per_s"] == sorted(training[name]["rounds"])[1]
    ours = training["ours"]["images_per_s"]
    assert training["ours_to_bare"] == ours / training["bare"]["images_per_s"]
    assert training["ours_to_plain"] == ours / training["plain"]["images_per_s"]
    assert (training["steps"], training["clusters"], training["way"]) == (4, 4, "plain")


def test_an_evaluation_takes_memory_where_the_system_says(report):
    if sys.platform == "linux":
        assert all(0 < row["bytes"] < 4 << 30 for row in report["memory"])


def test_the_text_has_every_figure(report):
    shown = text(report)
    assert shown.startswith(report["hardware"])
    assert f"b / a = {report['training']['ours_to_bare']:.3f}" in shown
    assert f"{report['training']['plain']['images_per_s']:,.0f} images/s" in shown
    for part in ("kmeans", "knn", "nmi"):
        for name, way in report[part]["ways"].items():
            assert name in shown
            assert f"{way['seconds']:.3f} s" in shown
    assert "400 x 8" in shown


def test_a_plain_loop_that_fails_is_said(photos, monkeypatch):
    def fails(*args, **kwargs):
        raise RuntimeError("DataLoader worker is killed\nby signal")

    monkeypatch.setattr("divconq.bench.measurements.plain_rates", fails)
    sizes = default_sizes("cpu", **(TINY | {"rounds": 1}))
    found = measure(Setup(sizes, ("step",), data=str(photos), device="cpu"))
    assert found["training"]["plain"] == {"error": "RuntimeError: DataLoader worker is killed"}
    assert "ours_to_plain" not in found["training"]
    assert "failed: RuntimeError: DataLoader worker is killed" in text(found)


def test_a_backbone_of_ones_own_is_measured(photos, tmp_path):
    (tmp_path / "own.py").write_text(
        "from timm.models import register_model\n"
        "from divconq.model import SmallNet\n"
        "@register_model\n"
        "def own_to_measure(pretrained=False, **keywords):\n"
        "    net = SmallNet()\n"
        "    net.pretrained_cfg = {'mean': (0.5, 0.5, 0.5), 'std': (0.5, 0.5, 0.5)}\n"
        "    return net\n"
    )
    sizes = default_sizes("cpu", **(TINY | {"rounds": 1, "backbone": "own_to_measure"}))
    setup = Setup(sizes, ("step",), str(photos), import_file=tmp_path / "own.py", device="cpu", others=False)
    found = measure(setup)["training"]
    assert found["backbone"] == "own_to_measure"
    assert found["ours_to_bare"] > 0


def test_every_part_is_kept_when_it_is_measured(photos):
    kept = []
    setup = Setup(
        default_sizes("cpu", **(TINY | {"rounds": 1})), data=str(photos), device="cpu", others=False
    )
    found = measure(setup, keep=lambda report: kept.append(set(report)))
    names = ["training", "embedding", "kmeans", "knn", "nmi", "memory"]
    assert [next(name for name in reversed(names) if name in report) for report in kept] == names
    assert "plain" not in found["training"]
    assert "plain eager loop" not in text(found)


def test_the_beetles_become_jpeg_files_of_whole_size():
    before = os.environ["DIVCONQ_CACHE"]
    with image_files("demo", 70, workers=2) as folder:
        train = open_dataset(folder).train
        assert (len(train), len(train.names)) == (70, 3)
        assert train.store.aspect[0] == pytest.approx(4 / 3)
        assert len(files_of(first(train, 10).store)) == 10
        again = first(open_dataset("demo").train, 70)
        assert train.labels.tolist() == again.labels.tolist()
        file = train.store.files[0]
        assert file.exists()
    assert not file.exists()
    assert os.environ["DIVCONQ_CACHE"] == before


def test_the_command_prints_a_table_or_json(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    flags = ["--only", "knn,kmeans", "--points", "150", "--dim", "4", "--device", "cpu"]
    main(["bench", *flags, "--json", "-"])
    printed = json.loads(capsys.readouterr().out)
    assert printed["knn"]["ways"]["faiss"] is None
    assert "training" not in printed
    main(["bench", *flags, "--json", str(tmp_path / "bench.json"), "--no-others"])
    assert "k-means: 150 x 4, K = 32, 100 iterations" in capsys.readouterr().out
    assert list(json.loads((tmp_path / "bench.json").read_text())["knn"]["ways"]) == ["divconq"]
    main(["bench", *flags])
    assert capsys.readouterr().out.count("not installed") == 3


def test_parts_are_known_by_name():
    assert parse_parts(None) == PARTS
    with pytest.raises(ValueError, match="got 'kmean'; did you mean 'kmeans'"):
        parse_parts("kmean")
    with pytest.raises(ValueError, match="got none"):
        parse_parts(",")
