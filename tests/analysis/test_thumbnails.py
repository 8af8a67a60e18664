import io
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from PIL import Image

from analysis.made_runs import made_images
from divconq.analysis.chapters.errors import Duplicate, Errors, Worst
from divconq.analysis.report.findings import Findings
from divconq.analysis.report.thumbnails import image_refs, make_thumbnails, thumbnail
from divconq.analysis.subject import Found, ImageRef
from divconq.data.dataset import ImageSet


@dataclass
class Counted:
    """Grey images with their index as brightness; records the loaded indices."""

    aspect: torch.Tensor
    size: int = 8
    loaded: list[int] = field(default_factory=list)

    def load(self, index):
        self.loaded += index.tolist()
        return index[:, None, None, None].expand(-1, self.size, self.size, 3).to(torch.uint8)


def counted(n):
    aspect = torch.linspace(0.5, 2.0, n)
    labels = torch.zeros(n, dtype=torch.int64)
    return ImageSet(Counted(aspect), labels, ("a",), tuple(map(str, range(n))))


def findings(*shown, more=()):
    worst = tuple(Worst(image, 3, tuple(Found(other, False) for other in more)) for image in shown)
    return Findings("d", 1, 0, 0, 0, 0, {"training": (), "errors": Errors(worst, (), (), ())}, ())


def test_every_referenced_image_is_loaded_once():
    train, test, gallery = counted(100), counted(200), counted(3)
    shown = [ImageRef("test", i, "a", "") for i in (7, 199, 7, *range(20, 100))]
    more = (ImageRef("train", 5, "a", ""), ImageRef("test", 7, "a", "", cluster=1))
    made = make_thumbnails(findings(*shown, more=more), {"train": train, "test": test, "gallery": gallery})
    assert set(made) == {("train", 5), ("test", 7), ("test", 199), *(("test", i) for i in range(20, 100))}
    assert sorted(test.store.loaded) == [7, *range(20, 100), 199]
    assert train.store.loaded == [5]
    assert gallery.store.loaded == []
    for (split, index), jpeg in made.items():
        image = Image.open(io.BytesIO(jpeg))
        aspect = float({"train": train, "test": test}[split].store.aspect[index])
        assert image.format == "JPEG"
        assert max(image.size) == 112
        assert image.width / image.height == pytest.approx(aspect, rel=0.02)
        assert abs(np.asarray(image).astype(int) - index).max() <= 2


def test_a_missing_split_has_no_thumbnails():
    shown = ImageRef("gallery", 0, "a", ""), ImageRef("test", 1, "a", "")
    assert set(make_thumbnails(findings(*shown), {"test": counted(2)})) == {("test", 1)}
    assert make_thumbnails(findings(*shown), {}) == {}


def test_image_refs_finds_nested_references():
    a, b = ImageRef("test", 3, "a", ""), ImageRef("train", 4, "b", "")
    assert list(image_refs(((a,), (), ((b, a),), (1, 2.0), "test", None, {"x": 1}))) == [a, b, a]
    assert list(image_refs(Duplicate(a, b, 0.5, "splits"))) == [a, b]


@pytest.mark.parametrize(("aspect", "size"), [(1.0, (112, 112)), (500.0, (112, 1)), (1 / 500, (1, 112))])
def test_a_thumbnail_of_any_shape(aspect, size):
    square = np.full((20, 20, 3), 90, dtype=np.uint8)
    assert Image.open(io.BytesIO(thumbnail(square, aspect))).size == size


def test_images_in_memory_are_square():
    made = make_thumbnails(findings(ImageRef("test", 0, "a", "")), {"test": made_images([0, 0])})
    assert Image.open(io.BytesIO(made["test", 0])).size == (112, 112)
