"""What an analysis finds, as plain values: ``study`` makes them, ``plots`` and ``page`` show them, JSON keeps them.

A number that does not exist (no images, an empty cluster) is NaN here and null in JSON. Images are named, not held:
their pictures are looked up by ``(split, index)``.
"""

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Split: TypeAlias = Literal["train", "test", "gallery"]
Curve: TypeAlias = tuple[tuple[int, ...], tuple[float, ...]]  # epochs, values
Matrix: TypeAlias = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Shown:
    """One image of the dataset: where it is, the name of its class, its path; ``cluster`` if that is of interest."""

    split: Split
    index: int
    label: str
    path: str
    cluster: int | None = None


@dataclass(frozen=True)
class Training:
    """How one run went: every logged figure by its name, and train against test Recall@1 of each epoch."""

    name: str
    config: dict[str, Any]
    curves: dict[str, Curve]
    generalisation: tuple[tuple[int, float, float], ...]  # epoch, train, test
    seconds: dict[str, float]  # by phase
    missing: tuple[str, ...]


@dataclass(frozen=True)
class DivisionStep:
    """One division: NMI with the classes and with the one before, the share that kept their cluster, the sizes."""

    epoch: int
    k: int
    nmi_classes: float
    nmi_previous: float
    kept: float
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class SplitOver:
    """A class whose images are in several clusters: its shares, their entropy in bits, and some of its images."""

    label: str
    images: int
    entropy: float
    shares: tuple[float, ...]
    examples: tuple[Shown, ...]


@dataclass(frozen=True)
class Factors:
    """How much each cluster or subspace (a row) says of each known factor (a column), from 0 to 1 (NMI)."""

    names: tuple[str, ...]
    values: Matrix


@dataclass(frozen=True)
class Clusters:
    """The divisions in order; of those into the final K: sizes' mean and deviation, a gallery for each cluster."""

    divisions: tuple[DivisionStep, ...]
    mean_size: tuple[float, ...]
    deviation: tuple[float, ...]
    galleries: tuple[tuple[Shown, ...], ...]
    split_classes: tuple[SplitOver, ...]
    factors: Factors | None


@dataclass(frozen=True)
class Found:
    """An image that was found, and whether it is of the query's class."""

    image: Shown
    right: bool


@dataclass(frozen=True)
class Retrieval:
    """A query, and what is nearest to it in each space: ``subspace 1`` .. ``subspace K``, ``sum``, ``baseline``."""

    query: Shown
    kind: Literal["corrected", "misled"]
    spaces: tuple[tuple[str, tuple[Found, ...]], ...]


@dataclass(frozen=True)
class Subspaces:
    """The masks relu(s_k), how they overlap, what each finds alone, and queries where they correct each other."""

    masks: Matrix
    cosine: Matrix
    shared: tuple[tuple[int, ...], ...]
    mass: tuple[float, ...]
    recalls: tuple[float, ...]
    final_recall: float
    queries: int  # that the recalls are means of
    corrected: int  # how many of these the sum gets right while most subspaces are wrong
    misled: int  # and the reverse
    retrievals: tuple[Retrieval, ...]
    factors: Factors | None


@dataclass(frozen=True)
class Geometry:
    """One split of one run as a set of points on the unit sphere."""

    images: int
    queries: int  # that searched the others; of many images a sample
    dim: int
    effective_dimension: int | None
    intra: float
    inter: float
    ratio: float  # nearest positive over nearest negative, expected
    ed1: float
    ed10: float
    sphere_ed1: float  # of as many points, uniform on the sphere
    sphere_ed10: float
    hubness: float


@dataclass(frozen=True)
class Space:
    """The space of one run: its geometry on train and test images, and each cluster's dimension in its subspace."""

    name: str
    train: Geometry
    test: Geometry
    cluster_dimensions: tuple[int | None, ...]


@dataclass(frozen=True)
class Map:
    """A projection onto the plane by UMAP of some images: a point, a class and a split for each."""

    points: tuple[tuple[float, float], ...]
    labels: tuple[int, ...]
    splits: tuple[Split, ...]
    of: int  # how many images there are, of which these are a sample


@dataclass(frozen=True)
class Worst:
    """A query whose first positive comes late: at which rank, and what came first instead."""

    query: Shown
    rank: int
    found: tuple[Found, ...]


@dataclass(frozen=True)
class Confused:
    """Two classes that are found for each other, how often, the share of their images, and an image of each."""

    first: str
    second: str
    count: int
    share: float
    examples: tuple[Shown, ...]


@dataclass(frozen=True)
class Mislabelled:
    """An image whose neighbours agree on another class."""

    image: Shown
    suggested: str
    score: float
    neighbours: tuple[Shown, ...]


@dataclass(frozen=True)
class Duplicate:
    """Two images that are too near to be of different classes, or of different splits."""

    first: Shown
    second: Shown
    distance: float
    across: Literal["classes", "splits"]


@dataclass(frozen=True)
class Errors:
    """Where search fails, and what may be wrong with the data."""

    worst: tuple[Worst, ...]
    confused: tuple[Confused, ...]
    mislabelled: tuple[Mislabelled, ...]
    duplicates: tuple[Duplicate, ...]


@dataclass(frozen=True)
class Findings:
    """All that was found of the first run, and how the others compare; None where there is nothing to look at.

    ``missing`` says in whole sentences what of the report could not be made, and why.
    """

    dataset: str
    epoch: int | None  # of the network that was looked at
    train_images: int
    train_classes: int
    test_images: int
    test_classes: int
    training: tuple[Training, ...]
    clusters: Clusters | None
    subspaces: Subspaces | None
    spaces: tuple[Space, ...]
    map: Map | None
    errors: Errors | None
    missing: tuple[str, ...]


def to_json(findings: Findings | Duplicate) -> str:
    """A finding, or all of them, as JSON; what is not a number becomes null.

    >>> import divconq.analysis.findings as f
    >>> f.to_json(f.Duplicate(f.Shown("test", 3, "wren", "a.jpg"), f.Shown("train", 1, "wren", "b.jpg"), 0.1, "splits"))
    ... # doctest: +ELLIPSIS
    '{"first": {"split": "test", "index": 3, "label": "wren", "path": "a.jpg", "cluster": null}, ...}'
    """
    return json.dumps(_plain(dataclasses.asdict(findings)), ensure_ascii=False)


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
