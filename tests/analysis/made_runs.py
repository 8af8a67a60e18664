"""Small runs and subjects for the tests."""

from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from divconq.analysis.run_record import RunRecord
from divconq.analysis.subject import Subject
from divconq.config import Config
from divconq.data.dataset import ImageSet, InMemory
from tiny_settings import TINY

SETTINGS = TINY.replace(epochs=3, nmi=False)


def made_images(labels, **factors):
    names = tuple(f"class {label}" for label in range(int(max(labels)) + 1))
    pixels = InMemory(torch.zeros(len(labels), 4, 4, 3, dtype=torch.uint8))
    paths = tuple(f"{i}.jpg" for i in range(len(labels)))
    factors = {name: torch.as_tensor(values) for name, values in factors.items()}
    return ImageSet(pixels, torch.as_tensor(labels), names, paths, factors=factors)


def made_subject(
    sizes=None,
    *,
    k=3,
    d=6,
    classes=5,
    noise=1.0,
    seed=0,
    clusters="random",
    config=None,
    factors=None,
    **embeddings,
):
    """A run without a folder: random embeddings around class means."""
    sizes = sizes or {"train": 40, "test": 30}
    generator = torch.Generator().manual_seed(seed)
    images, f = {}, {}
    means = torch.randn(classes, d, generator=generator)
    for split, n in sizes.items():
        labels = torch.randint(classes, (n,), generator=generator)
        labels[0] = classes - 1  # gives all splits the same number of classes
        images[split] = made_images(labels, **(factors or {}).get(split, {}))
        f[split] = F.normalize(means[labels] + noise * torch.randn(n, d, generator=generator))
    f |= embeddings
    if clusters == "random":
        clusters = torch.randint(k, (sizes["train"],), generator=generator)
    masks = torch.randn(k, d, generator=generator).relu()
    record = RunRecord(Path("run"), config or Config.of(k_max=4), (), (), ())
    return Subject("run", record, 1, images, f, masks, clusters)


class PlainMap:
    """Replaces UMAP, which takes long to compile: returns the first two coordinates."""

    def __init__(self, **settings):
        self.settings = settings

    def fit_transform(self, x):
        index, distance = self.settings["precomputed_knn"]
        assert index.shape == distance.shape == (len(x), self.settings["n_neighbors"])
        assert (index[:, 0] == range(len(x))).all()
        return x[:, :2]


PLAIN_UMAP = SimpleNamespace(UMAP=PlainMap)


def nearest_by_hand(x, query, gallery, k):
    """The k nearest by a plain loop; without a gallery, among the other points."""
    others = x if gallery is None else gallery
    gaps = [
        (float((x[query] - others[j]).square().sum()), j)
        for j in range(len(others))
        if gallery is not None or j != query
    ]
    return [j for _, j in sorted(gaps)[:k]]
