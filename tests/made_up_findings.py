"""Made-up findings, to test how the report shows them."""

import dataclasses
import io
import math

import numpy as np
import torch
from PIL import Image

from divconq.analysis.chapters.clusters import Clusters, DivisionStep, SplitOver
from divconq.analysis.chapters.consistency import Consistency
from divconq.analysis.chapters.errors import Confused, Duplicate, Errors, Mislabelled, Worst
from divconq.analysis.chapters.projection import Map, Plane
from divconq.analysis.chapters.spaces import Geometry, Space
from divconq.analysis.chapters.subspaces import Retrieval, Subspaces
from divconq.analysis.chapters.training import Training
from divconq.analysis.measures.factors import FactorTable
from divconq.analysis.report.assemble import draw_figures
from divconq.analysis.report.findings import Findings, to_json
from divconq.analysis.subject import Found, ImageRef

NASTY = "<script>alert('x')</script> & \"Söhne\" $x_1$ " + 3 * "a_name_without_any_space_in_it_"
DRAWN: dict = {}
FACTORS = ("background", "viewpoint", "scale", "light", "colour cast", "look")


def pictures_of(findings: Findings, size: int = 64) -> dict:
    """A thumbnail for every image in the findings, in a colour of its own."""
    made = {}
    for image in images_in(findings):
        tint = [(37 * image.index + 60 * channel) % 200 + 40 for channel in range(3)]
        file = io.BytesIO()
        Image.new("RGB", (size, size), tuple(tint)).save(file, "JPEG", quality=60)
        made[image.split, image.index] = file.getvalue()
    return made


def drawn(findings: Findings) -> dict:
    """The figures, drawn once for all tests."""
    key = to_json(findings)
    if key not in DRAWN:
        DRAWN[key] = draw_figures(findings)
    return DRAWN[key]


def svgs(findings: Findings) -> dict:
    return {name: svg for name, (svg, _) in drawn(findings).items()}


def images_in(value):
    """Every image reference inside a value."""
    if isinstance(value, ImageRef):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from images_in(getattr(value, field.name))
    elif isinstance(value, tuple | list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from images_in(inner)


def shown(index, label="wren", split="test", cluster=None):
    return ImageRef(split, index, label, f"birds/{label}/{index:04d}.jpg", cluster)


def training(name="demo", epochs=12, seed=0, last=0.78, divisions=(3, 6, 9)):
    random = np.random.default_rng(seed)
    steps = range(1, epochs + 1)
    rise = [last * (1 - math.exp(-4 * step / epochs)) + random.normal(0, 0.008) for step in steps]
    train = [min(1.0, 1.2 * value) for value in rise]
    k = [2 ** min(2, sum(step > at for at in divisions)) for step in steps]
    return Training(
        name=name,
        config={"epochs": epochs, "k_max": 4, "masks": "learned", "loss": "triplet"},
        curves={
            "recall@1": (tuple(steps), tuple(rise)),
            "map@r": (tuple(steps), tuple(value / 3 for value in rise)),
            "loss": (tuple(steps), tuple(0.4 - 0.3 * value for value in rise)),
            "k": (tuple(steps), tuple(map(float, k))),
            "overlap": (tuple(steps), tuple(0.9 * (count > 1) for count in k)),
            "dead_masks": (tuple(steps), tuple(0.1 * (count > 1) for count in k)),
            "lr": (tuple(steps), tuple(1e-5 * (1 - step / (epochs + 1)) for step in steps)),
        },
        generalisation=tuple(zip(steps, train, rise, strict=True)),
        seconds={"train": 96.0, "divide": 7.5, "evaluate": 21.0},
        missing=(),
    )


def geometry(images=2400, at=1.0):
    return Geometry(
        images,
        min(images, 10_000),
        128,
        int(40 * at),
        0.31 * at,
        0.52 / at,
        0.83,
        0.41 * at,
        0.6 * at,
        1.1,
        1.17,
        1.9,
    )


def clusters(k=4, names=FACTORS):
    random = np.random.default_rng(1)
    steps, before = [], 1
    for number, epoch in enumerate((3, 6, 9, 12, 15)):
        count = min(k, 2 ** (number + 1))
        cuts = random.dirichlet([9.0] * count) * 2400
        first = number == 0
        steps.append(
            DivisionStep(
                epoch,
                count,
                0.2 + 0.04 * number,
                math.nan if first else 0.5,
                math.nan if first else 0.7,
                tuple(int(cut) for cut in cuts),
            )
        )
        before = count
    assert before == k or k > 32 or k == 1
    galleries = tuple(tuple(shown(100 * c + i, f"bird {i}", "train", c) for i in range(8)) for c in range(k))
    split = tuple(
        SplitOver(
            f"species {label}",
            30,
            1.9 - 0.1 * label,
            tuple(random.dirichlet([2.0] * k)),
            tuple(shown(5000 + 20 * label + i, f"species {label}", "train", i % k) for i in range(8)),
        )
        for label in range(3)
    )
    table = tuple(tuple(random.uniform(0, 0.4, len(names))) for _ in range(k))
    return Clusters(
        tuple(steps),
        tuple(2400 / k + 30.0 * c for c in range(k)),
        tuple(20.0 + c for c in range(k)),
        galleries,
        split,
        factor_table(names, table) if names else None,
        (
            Consistency(1, "E = 2", 2, (4, 6, 8), (0.3, 0.4, 0.5), (0.6, 0.7, 0.65)),
            Consistency(0, "E = 3", 3, (6, 9), (0.5, 0.55), (0.7, 0.75)),
        ),
    )


def subspaces(k=4, dim=128, retrievals=2, baseline=True):
    random = np.random.default_rng(2)
    own = np.arange(dim) * k // dim
    weights = np.where(own == np.arange(k)[:, None], 1.0, 0.08) * random.uniform(0.2, 1, (k, dim))
    weights = weights[:, random.permutation(dim)]
    unit = weights / np.linalg.norm(weights, axis=1, keepdims=True)
    active = (weights > 0.1).astype(int)
    asked = []
    for number in range(retrievals):
        names = [f"subspace {c + 1}" for c in range(k)] + ["sum"] + ["baseline"] * baseline
        spaces = tuple(
            (
                name,
                tuple(
                    Found(shown(9000 + 50 * number + (7 * place + row) % 40), (place + row) % 3 == 0)
                    for place in range(8)
                ),
            )
            for row, name in enumerate(names)
        )
        kind = "corrected" if number % 2 == 0 else "misled"
        asked.append(Retrieval(shown(8000 + number, f"query {number}"), kind, spaces))
    return Subspaces(
        masks=tuple(map(tuple, weights.tolist())),
        cosine=tuple(map(tuple, (unit @ unit.T).tolist())),
        shared=tuple(map(tuple, (active @ active.T).tolist())),
        mass=tuple(weights.sum(1).tolist()),
        recalls=tuple(0.62 + 0.02 * c for c in range(k)),
        final_recall=0.78,
        queries=1200,
        corrected=61,
        misled=9,
        retrievals=tuple(asked),
        factors=factor_table(FACTORS, random.uniform(0, 0.5, (k, 6)).tolist()),
    )


def factor_table(names, values):
    return FactorTable(tuple(names), torch.tensor(values, dtype=torch.float64))


def umap(points=600, classes=80):
    random = np.random.default_rng(3)
    labels = random.integers(0, classes, points)
    centres = random.normal(0, 5, (classes, 2))
    where = centres[labels] + random.normal(0, 0.5, (points, 2))
    splits = tuple("train" if i % 2 else "test" for i in range(points))
    here = tuple(map(tuple, where.tolist()))
    runs = tuple(Plane(f"K_max = {k}", tuple((k * x, -y) for x, y in here)) for k in (1, 4, 32))
    return Map(here, tuple(labels.tolist()), splits, 3600, "UMAP", runs)


def errors():
    worst = tuple(
        Worst(
            shown(7000 + i, f"bird {i}"),
            40 - i,
            tuple(Found(shown(7100 + 9 * i + j), False) for j in range(6)),
        )
        for i in range(3)
    )
    confused = tuple(
        Confused(
            f"tern {i}",
            f"gull {i}",
            14 - i,
            0.23,
            (shown(7400 + i, f"tern {i}"), shown(7500 + i, f"gull {i}")),
        )
        for i in range(3)
    )
    wrong = tuple(
        Mislabelled(
            shown(7600 + i, "crow"), "raven", 1.0, tuple(shown(7700 + 9 * i + j, "raven") for j in range(6))
        )
        for i in range(2)
    )
    twins = (
        Duplicate(shown(7800, "crow"), shown(7801, "raven"), 0.012, "classes"),
        Duplicate(shown(7802, "wren", "train"), shown(7803, "wren"), 0.034, "splits"),
    )
    return Errors(worst, confused, wrong, twins)


def full(k=4):
    """Complete findings of two runs."""
    return Findings(
        dataset="demo",
        epoch=12,
        train_images=2400,
        train_classes=80,
        test_images=1200,
        test_classes=40,
        chapters={
            "training": (training(), training("baseline", seed=4, last=0.74, divisions=())),
            "clusters": clusters(k),
            "subspaces": subspaces(k),
            "spaces": (
                Space("demo", geometry(), geometry(1200, 0.9), tuple(20 + c for c in range(k))),
                Space("baseline", geometry(at=0.8), geometry(1200, 0.7), ()),
            ),
            "map": umap(),
            "errors": errors(),
        },
        missing=("There is no best.pt: the best epoch cannot be analysed.",),
    )


def many():
    """Ten thousand classes and thirty-two subspaces."""
    return replaced(full(k=32), train_classes=10_000, chapters={"map": umap(3000, 10_000)})


def one_cluster():
    """A run with K = 1: no divisions, one mask."""
    missing = "There are no divisions: k_max is 1, so all images are in one cluster."
    run = dataclasses.replace(training(divisions=()), missing=(missing,))
    space = Space("demo", geometry(), geometry(1200), (31,))
    one = dataclasses.replace(subspaces(1, retrievals=0), factors=None, corrected=0, misled=0)
    chapters = {"training": (run,), "clusters": None, "subspaces": one, "spaces": (space,)}
    return replaced(full(), chapters=chapters, missing=(missing,))


def nothing():
    """A run that stopped before the end of its first epoch."""
    run = Training(
        "begun", {"epochs": 5}, {}, (), {}, ("No epoch was logged: the run stopped before its first.",)
    )
    empty = {"clusters": None, "subspaces": None, "spaces": (), "map": None, "errors": None}
    return Findings("photos", None, 0, 0, 0, 0, {"training": (run,), **empty}, ("There is no last.pt.",))


def replaced(findings: Findings, chapters: dict, **changes):
    """The same with other chapters, or other values."""
    return dataclasses.replace(findings, chapters=findings.chapters | chapters, **changes)


def with_names(findings: Findings, name: str):
    """The same, with all names that a user can choose replaced."""

    def change(value):
        if isinstance(value, ImageRef):
            return dataclasses.replace(value, label=name, path=f"{name}/a.jpg")
        if dataclasses.is_dataclass(value):
            changed = {f.name: change(getattr(value, f.name)) for f in dataclasses.fields(value)}
            for field in ("label", "first", "second", "suggested", "name", "dataset"):
                if isinstance(changed.get(field), str):
                    changed[field] = name
            if isinstance(value, FactorTable):
                changed["names"] = (name,) * len(value.names)
            if isinstance(value, Training):
                changed["seconds"] = {name: 3.0}
            return type(value)(**changed)
        if isinstance(value, tuple):
            return tuple(map(change, value))
        return value

    chapters = {key: change(result) for key, result in findings.chapters.items()}

    return dataclasses.replace(findings, dataset=name, chapters=chapters, missing=(name,))
