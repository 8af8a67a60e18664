"""The geometry of a run's final space, on training and test images, and its map on the plane."""

import warnings

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from divconq.analysis.findings import Geometry, Map, Space, Split
from divconq.analysis.nearest import distances, nearest_other, nearest_same, neighbours
from divconq.analysis.space import (
    class_variances,
    effective_dimension,
    effective_dimensions,
    expected_distance,
    expected_distance_on_sphere,
    hubness,
    positive_negative_ratio,
)
from divconq.analysis.subject import NEIGHBOURS, Subject, sample

MANY, QUERIES = 20_000, 10_000  # of more images than that, only so many search the others
MAPPED = 5_000  # images of a map
FEWEST = 8  # images of which a map can be made
MAP_NEIGHBOURS, MAP_EPOCHS = 15, 200


def space_of(subject: Subject, *, thorough: bool = True, seed: int = 0) -> Space:
    """The geometry of both splits, and the dimension of each cluster in its subspace.

    If ``thorough``, every test image searches the others, which other chapters need too.
    """
    train = geometry(subject.x["train"], subject.labels["train"], seed=seed)
    ranking = subject.near if thorough else None
    test = geometry(subject.points, subject.point_labels, ranking, seed=seed)
    dimensions: list[int | None] = []
    if subject.clusters is not None:
        dimensions = effective_dimensions(subject.f["train"], subject.clusters, subject.masks)
    return Space(subject.name, train, test, tuple(dimensions))


def geometry(
    x: Float[Tensor, "n d"],
    labels: Int64[Tensor, " n"],
    ranking: Int64[Tensor, "n k"] | None = None,
    *,
    many: int = MANY,
    queries: int = QUERIES,
    seed: int = 0,
) -> Geometry:
    """What points on the unit sphere are like, with classes.

    Distances to neighbours, their ratio and hubness need a search: of more than ``many`` points only a sample of
    ``queries`` searches all of them, unless a ``ranking`` is there.

    >>> corners = torch.eye(3).repeat_interleave(2, 0)
    >>> found = geometry(corners, torch.tensor([0, 0, 1, 1, 2, 2]))
    >>> found.images, found.ed1, round(found.ratio, 3), found.effective_dimension
    (6, 0.0, 0.0, 2)
    """
    asked = torch.arange(len(x)) if ranking is not None or len(x) <= many else sample(len(x), queries, seed)
    asked = asked.to(x.device)
    found = neighbours(x, NEIGHBOURS, queries=asked) if ranking is None else ranking
    near = distances(x[asked], x, found)
    same, other = nearest_same(x, labels)[1][asked], nearest_other(x, labels, found, queries=asked)[1]
    variances = class_variances(x, labels)
    return Geometry(
        images=len(x),
        queries=len(asked),
        dim=x.shape[1],
        effective_dimension=effective_dimension(x),
        intra=variances.intra,
        inter=variances.inter,
        ratio=positive_negative_ratio(same, other),
        ed1=expected_distance(near, 1),
        ed10=expected_distance(near, 10),
        sphere_ed1=expected_distance_on_sphere(len(x), x.shape[1], 1),
        sphere_ed10=expected_distance_on_sphere(len(x), x.shape[1], 10),
        hubness=hubness(found, len(x), len(x)),
    )


def map_of(subject: Subject, *, most: int = MAPPED, seed: int = 0) -> Map | str:
    """A sample of all images on the plane, by UMAP; or a sentence that says why there is none."""
    counts = {split: len(x) for split, x in subject.x.items()}
    total = sum(counts.values())
    if total < FEWEST:
        return f"There is no map: {total} images are too few for one."
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from umap import UMAP
    except ImportError:
        return 'There is no map: UMAP is not installed; pip install "divconq[umap]".'
    chosen = sample(total, most, seed)
    x = torch.cat(list(subject.x.values()))[chosen.to(subject.masks.device)]
    found = neighbours(x, min(MAP_NEIGHBOURS, len(x)) - 1)
    own = torch.arange(len(x), device=x.device)[:, None]
    known = torch.cat([own, found], 1), torch.cat([torch.zeros_like(own), distances(x, x, found)], 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a seed leaves it one thread
        projection = UMAP(
            n_neighbors=known[0].shape[1],
            precomputed_knn=tuple(part.cpu().numpy() for part in known),
            n_epochs=MAP_EPOCHS,
            random_state=seed,
        ).fit_transform(x.cpu().numpy())
    splits: list[Split] = [split for split, count in counts.items() for _ in range(count)]
    labels = torch.cat(list(subject.labels.values())).tolist()
    return Map(
        tuple((float(across), float(up)) for across, up in projection),
        tuple(labels[i] for i in chosen.tolist()),
        tuple(splits[i] for i in chosen.tolist()),
        total,
    )
