import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small work: threads that wait for each other only cost time

from pathlib import Path

import jaxtyping
import numpy as np
import pytest
from PIL import Image

# Nothing of divconq is imported here: jaxtyping 0.2 cannot check a package that conftest.py imports.


def write_photos(folder: Path, classes: int = 16, images: int = 6, size: int = 24) -> Path:
    """A folder of class folders: every class has its own colour and stripe, every image its own noise."""
    random = np.random.default_rng(0)
    for label in range(classes):
        (folder / f"class{label:02d}").mkdir(parents=True)
        colour, stripe = random.integers(40, 215, 3), random.integers(1, 5)
        for number in range(images):
            picture = colour + random.normal(0, 25, (size, size, 3))
            picture[:: stripe + 1] += 30
            pixels = picture.clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"class{label:02d}" / f"{number}.png")
    return folder


@pytest.fixture(autouse=True, scope="session")
def cache_of_the_tests(tmp_path_factory):
    """One cache for all processes of the tests, so that the demo is drawn once."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    os.environ["DIVCONQ_CACHE"] = str(shared / "cache")


@pytest.fixture(autouse=True)
def nothing_between_a_function_and_the_compiler(request, monkeypatch):
    """Types are not checked in tests that need a GPU: what checks them cannot be compiled."""
    if request.node.get_closest_marker("gpu"):
        monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp("data") / "photos")


@pytest.fixture
def tiny(photos):
    """The config of a training run of a second: 8 classes of 6 small photos, K goes from 1 to 2."""
    from tiny_settings import TINY

    return TINY.replace(data=str(photos))
