"""Ten thousand classes: nothing takes a time or memory that grows with the square of their number."""

import resource
import time

import numpy as np
import pytest
from PIL import Image

from divconq.data import hold_out, open_dataset
from divconq.data.batches.sampler import plan_epoch
from divconq.data.check import check_dataset

CLASSES = 10_000


def assert_usable(path):
    start, memory = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    data = open_dataset(str(path), size=8, workers=2)
    assert (len(data.train.names), len(data.test.names)) == (CLASSES // 2, CLASSES // 2)
    assert (len(data.train), len(data.test)) == (CLASSES, CLASSES)
    report = check_dataset(data, workers=2)
    assert report.problems == []
    assert report.splits["train"].classes == CLASSES // 2
    assert len(report.to_text()) < 3000
    rest, held = hold_out(data.train, CLASSES // 4, seed=0)
    assert len(rest.names) == len(held.names) == CLASSES // 4
    for clusters, per_class in ((data.train.labels * 0, None), (data.train.labels % 8, 2)):
        plan = plan_epoch(data.train.labels, clusters, 8, batch=80, per_class=per_class, seed=0, epoch=0)
        assert len(list(plan)) == CLASSES // 80
    assert time.perf_counter() - start < 300  # a quadratic loop takes far longer
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 500_000  # kilobytes


def test_table_of_ten_thousand_classes(tmp_path):
    """Every image is a box of one file."""
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (101, 201, 3), np.uint8)).save(
        tmp_path / "0.png"
    )
    rows = [
        f"0.png,class {i // 2},{i % 200},{i // 200},{i % 200 + 1},{i // 200 + 1}" for i in range(2 * CLASSES)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["path,label,x1,y1,x2,y2", *rows]))
    assert_usable(tmp_path / "t.csv")


@pytest.mark.slow
def test_folder_of_ten_thousand_classes(tmp_path):
    for i in range(CLASSES):
        (tmp_path / f"class {i}").mkdir()
        for j in range(2):
            Image.new("RGB", (8, 8), (i % 256, i // 256, j)).save(tmp_path / f"class {i}" / f"{j}.png")
    assert_usable(tmp_path)
