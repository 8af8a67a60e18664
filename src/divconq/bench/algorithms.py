"""Compare clustering and search with faiss, scikit-learn and pytorch-metric-learning on the same points.

Our functions run on the device of the points; the others run on the CPU unless a GPU build of them is installed. Each
comparison returns seconds and quality figures per library; a library that is not installed has None.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from divconq.bench.timing import median_seconds
from divconq.division.lloyd import kmeans
from divconq.evaluation import nmi, retrieval_scores
from divconq.evaluation.metrics import normalised_information

Figures: TypeAlias = dict[str, float]
Result = TypeVar("Result")

OURS = "divconq"
KS = (1, 10, 100)
NMI_ITERATIONS = 25  # the default of our NMI
NOISE = 3.0  # of the points in a search, so that many have a wrong nearest neighbour


def points(
    n: int, dim: int, classes: int, *, device: torch.device, noise: float = 1.0, seed: int = 0
) -> tuple[Float32[Tensor, "n d"], Int64[Tensor, " n"]]:
    """Return unit vectors (n, d) around one random centre per class, and their class labels (n).

    >>> x, labels = points(6, 4, classes=3, device=torch.device("cpu"))
    >>> x.shape, labels.tolist()
    (torch.Size([6, 4]), [0, 1, 2, 0, 1, 2])
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    x = torch.randn(classes, dim, generator=generator)[labels]
    x += noise * torch.randn(n, dim, generator=generator)
    return F.normalize(x).to(device), labels.to(device)


def compare(
    ways: Mapping[str, Callable[[], Result]], judge: Callable[[Result], Figures], device: torch.device
) -> dict[str, Figures | None]:
    """Return the seconds and figures of each library; None if it is not installed."""
    found: dict[str, Figures | None] = {}
    for name, work in ways.items():
        try:
            seconds, result = median_seconds(work, device)
        except ImportError:
            found[name] = None
        else:
            found[name] = {"seconds": seconds, **judge(result)}
    return found


def compare_kmeans(
    n: int, dim: int, *, k: int = 32, iterations: int = 100, device: torch.device, others: bool = True
) -> dict[str, Figures | None]:
    """Cluster random points, so that all iterations run. Return seconds and ``cost``, the mean squared distance."""
    x = points(n, dim, n, device=device)[0]
    plain = x.cpu().numpy()
    ways: dict[str, Callable[[], Any]] = {OURS: lambda: kmeans(x, k, iterations=iterations).cpu().numpy()}
    if others:
        ways |= {
            "faiss": lambda: faiss_kmeans(plain, k, iterations),
            "scikit-learn": lambda: sklearn_kmeans(plain, k, iterations, "k-means++"),
        }
    return compare(ways, lambda labels: {"cost": cost(plain, labels, k)}, device)


def compare_search(
    n: int, dim: int, classes: int, *, device: torch.device, others: bool = True
) -> dict[str, Figures | None]:
    """Find the exact neighbours of every point. Return seconds, recall@1, 10, 100 and MAP@R."""
    x, labels = points(n, dim, classes, device=device, noise=NOISE)
    plain, names = x.cpu().numpy(), labels.cpu().numpy()
    ks = tuple(k for k in KS if k < n)
    ways: dict[str, Callable[[], Any]] = {OURS: lambda: retrieval_scores(x, labels, ks=ks)}
    if others:
        ways |= {
            "faiss": lambda: scores(faiss_neighbours(plain, max(ks)), names, ks),
            "scikit-learn": lambda: scores(sklearn_neighbours(plain, max(ks)), names, ks),
            "pytorch-metric-learning": lambda: metric_learning_scores(x, labels, max(ks)),
        }
    kept = (*(f"recall@{k}" for k in ks), "map@r")
    return compare(ways, lambda found: {name: found[name] for name in kept if name in found}, device)


def compare_nmi(
    n: int, dim: int, classes: int, *, device: torch.device, others: bool = True
) -> dict[str, Figures | None]:
    """Cluster into as many clusters as classes. Return seconds and normalised mutual information."""
    x, labels = points(n, dim, classes, device=device)
    plain, names = x.cpu().numpy(), labels.cpu()

    def score(clusters: np.ndarray) -> float:
        return normalised_information(names, torch.from_numpy(clusters).long())

    ways: dict[str, Callable[[], float]] = {OURS: lambda: nmi(x, labels, iterations=NMI_ITERATIONS)}
    if others:
        ways |= {
            "faiss": lambda: score(faiss_kmeans(plain, classes, NMI_ITERATIONS)),
            "scikit-learn": lambda: score(sklearn_kmeans(plain, classes, NMI_ITERATIONS, "random")),
            "pytorch-metric-learning": lambda: metric_learning_nmi(x, labels),
        }
    return compare(ways, lambda found: {"nmi": found}, device)


def faiss_kmeans(x: Float[np.ndarray, "n d"], k: int, iterations: int) -> np.ndarray:
    """Return the clusters found by faiss on all points, from a random start."""
    import faiss

    runner = faiss.Kmeans(
        x.shape[1], k, niter=iterations, min_points_per_centroid=1, max_points_per_centroid=len(x)
    )
    runner.train(x)
    labels: np.ndarray = runner.index.search(x, 1)[1][:, 0]
    return labels


def sklearn_kmeans(x: Float[np.ndarray, "n d"], k: int, iterations: int, init: str) -> np.ndarray:
    """Return the clusters found by scikit-learn; it stops early only if nothing changes."""
    import warnings

    from sklearn.cluster import KMeans

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that it did not converge
        labels: np.ndarray = KMeans(
            k, init=init, n_init=1, max_iter=iterations, tol=0, random_state=0
        ).fit_predict(x)
    return labels


def faiss_neighbours(x: Float[np.ndarray, "n d"], k: int) -> np.ndarray:
    """Return the ``k`` nearest other points by faiss; its first column, the point itself, is dropped."""
    import faiss

    index = faiss.IndexFlatL2(x.shape[1])
    index.add(x)
    found: np.ndarray = index.search(x, k + 1)[1][:, 1:]
    return found


def sklearn_neighbours(x: Float[np.ndarray, "n d"], k: int) -> np.ndarray:
    """Return the ``k`` nearest other points by scikit-learn."""
    from sklearn.neighbors import NearestNeighbors

    found: np.ndarray = (
        NearestNeighbors(n_neighbors=k, algorithm="brute").fit(x).kneighbors(return_distance=False)
    )
    return found


def metric_learning_scores(x: Float[Tensor, "n d"], labels: Int64[Tensor, " n"], k: int) -> Figures:
    """Return the scores of pytorch-metric-learning, from the ``k`` nearest other points."""
    import faiss  # noqa: F401  # an undeclared dependency
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    names = {"precision_at_1": "recall@1", "mean_average_precision_at_r": "map@r"}
    found = AccuracyCalculator(include=tuple(names), k=k, device=x.device).get_accuracy(x, labels)
    return {ours: float(found[theirs]) for theirs, ours in names.items()}


def metric_learning_nmi(x: Float[Tensor, "n d"], labels: Int64[Tensor, " n"]) -> float:
    """Return NMI by pytorch-metric-learning, which runs 20 iterations of faiss."""
    import faiss  # noqa: F401  # an undeclared dependency
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    return float(AccuracyCalculator(include=("NMI",), device=x.device).get_accuracy(x, labels)["NMI"])


def scores(neighbours: np.ndarray, labels: np.ndarray, ks: tuple[int, ...]) -> Figures:
    """Return recall@k and MAP@R of neighbours (n, k), over the points whose class has another point.

    >>> scores(np.array([[1, 2], [0, 2], [1, 0]]), np.array([4, 4, 9]), (1,))
    {'recall@1': 1.0, 'map@r': 1.0}
    """
    _, number, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    relevant = sizes[number] - 1
    hits = (labels[neighbours] == labels[:, None])[relevant > 0]
    relevant = relevant[relevant > 0]
    width = min(int(relevant.max()), hits.shape[1])
    rank = np.arange(1, width + 1)
    early = hits[:, :width] & (rank <= relevant[:, None])
    precisions = (early.cumsum(1) / rank * early).sum(1)
    recalls = {f"recall@{k}": float(hits[:, :k].any(1).mean()) for k in ks}
    return recalls | {"map@r": float((precisions / relevant).mean())}


def cost(x: Float[np.ndarray, "n d"], labels: np.ndarray, k: int) -> float:
    """Return the mean squared distance of points to the means of their clusters.

    >>> cost(np.array([[0.0], [2.0], [5.0]]), np.array([0, 0, 1]), 2)
    0.6666666666666666
    """
    centres = np.stack([x[labels == c].mean(0) if (labels == c).any() else x[0] for c in range(k)])
    return float(np.square(x - centres[labels], dtype=np.float64).sum(1).mean())
