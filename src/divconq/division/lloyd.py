"""k-means by Lloyd's algorithm in float32: faiss on the CPU, torch on a GPU, with the same initial centroids."""

import math

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from divconq.accel.coordinates import power_of_two, scaled, spread_out
from divconq.accel.precision import exact_products

SCORES = 1 << 24  # point-to-centroid scores that the torch loop holds in memory: 64 MiB
PLUS_PLUS_UP_TO = 256  # clusters; for more, k-means++ costs more than it gains
FAR = 1e-6  # share of the variance in the mean square, below which float32 is too coarse to centre the points
CHECK_EVERY = 10  # iterations between convergence checks: a check synchronises with the device


def kmeans(x: Float[Tensor, "n d"], k: int, seed: int = 0, iterations: int = 100) -> Int64[Tensor, " n"]:
    """Return the cluster of each point; the ``k`` clusters minimise Σ_c Σ_{x in c} |x - mean(c)|².

    The initial centroids are those of k-means++, or random rows for more than 256 clusters. No cluster is empty: an
    empty one gets the point that is farthest from its centroid, from a cluster with several points.

    >>> kmeans(torch.tensor([[0.0], [0.1], [9.0], [9.1]]), k=2).tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])
    True
    """
    check_points(x)
    n = len(x)
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}; ask for one cluster or more")
    if k > n:
        raise ValueError(
            f"k must be at most the number of points, got k = {k} for {n} points; use a smaller k"
        )
    if k in (1, n):
        return torch.arange(n, device=x.device) % k
    points = _standardise(x)
    with exact_products(x.device.type):
        centroids = initial_centroids(points, k, seed)
        lloyd = lloyd_faiss if x.device.type == "cpu" and _has_faiss() else lloyd_torch
        clusters, distances = lloyd(points, centroids, iterations)
    return _fill_empty(clusters, distances, k)


def check_points(x: Tensor) -> None:
    """Raise ValueError unless ``x`` is a matrix of finite numbers.

    >>> check_points(torch.tensor([[1.0], [float("nan")]]))
    Traceback (most recent call last):
    ValueError: x must be finite, got NaN or infinity in 1 of 2 rows; check the network that made it
    """
    if x.ndim != 2 or x.shape[1] == 0:
        raise ValueError(f"x must be of shape (points, features), got {tuple(x.shape)}; use x.flatten(1)")
    bad = int((~torch.isfinite(x.float())).any(1).sum())
    if bad:
        raise ValueError(
            f"x must be finite, got NaN or infinity in {bad} of {len(x)} rows; check the network that made it"
        )


def initial_centroids(x: Float32[Tensor, "n d"], k: int, seed: int) -> Float32[Tensor, "k d"]:
    """Return ``k`` rows of ``x``, selected by greedy k-means++; for more than 256 clusters, distinct random rows.

    Random numbers are drawn on the CPU, so all devices start from the same rows.

    >>> initial_centroids(torch.tensor([[0.0], [0.0], [5.0]]), k=2, seed=0).flatten().sort().values
    tensor([0., 5.])
    """
    generator = torch.Generator().manual_seed(seed)
    if k > PLUS_PLUS_UP_TO:
        return x[torch.randperm(len(x), generator=generator)[:k].to(x.device)]
    trials = min(2 + int(math.log(k)), len(x))
    norms = torch.linalg.vecdot(x, x)
    chosen = torch.randint(len(x), (1,), generator=generator).to(x.device)
    nearest = _squared_distances(x, norms, chosen)[0]
    for _ in range(k - 1):
        # The smallest of exponential variables with rates `nearest` is a draw in proportion to the rates.
        clocks = -torch.rand(len(x), generator=generator, dtype=torch.float64).to(x.device).log()
        candidates = (nearest / clocks.to(x)).topk(trials).indices
        reduced = torch.minimum(nearest, _squared_distances(x, norms, candidates))
        best = reduced.sum(1).argmin()
        nearest = reduced[best]
        chosen = torch.cat([chosen, candidates[best][None]])
    return x[chosen]


def lloyd_torch(
    x: Float32[Tensor, "n d"], centroids: Float32[Tensor, "k d"], iterations: int
) -> tuple[Int64[Tensor, " n"], Float32[Tensor, " n"]]:
    """Return the cluster and the squared distance to its centroid of each point after ``iterations`` of Lloyd.

    >>> lloyd_torch(torch.tensor([[0.0], [2.0], [9.0]]), torch.tensor([[0.0], [2.0]]), iterations=5)
    (tensor([0, 0, 1]), tensor([1., 1., 0.]))
    """
    norms = torch.linalg.vecdot(x, x)
    clusters, distances = _assign(x, norms, centroids)
    for done in range(1, iterations + 1):
        before = clusters
        clusters, distances = _assign(x, norms, _means(x, clusters, distances, len(centroids)))
        if done % CHECK_EVERY == 0 and torch.equal(clusters, before):
            break
    return clusters, distances


def lloyd_faiss(
    x: Float32[Tensor, "n d"], centroids: Float32[Tensor, "k d"], iterations: int
) -> tuple[Int64[Tensor, " n"], Float32[Tensor, " n"]]:
    """Return the same as ``lloyd_torch``, computed by faiss; for tensors on the CPU.

    >>> lloyd_faiss(torch.tensor([[0.0], [2.0], [9.0]]), torch.tensor([[0.0], [2.0]]), iterations=5)
    (tensor([0, 0, 1]), tensor([1., 1., 0.]))
    """
    import faiss

    (n, d), k = x.shape, len(centroids)
    runner = faiss.Kmeans(d, k, niter=iterations, min_points_per_centroid=1, max_points_per_centroid=n)
    runner.train(x.numpy(), init_centroids=centroids.numpy())
    distances, clusters = runner.index.search(x.numpy(), 1)
    return torch.from_numpy(clusters[:, 0]), torch.from_numpy(distances[:, 0])


def _has_faiss() -> bool:
    try:
        import faiss  # noqa: F401
    except ImportError:
        return False
    return True


def _standardise(x: Float[Tensor, "n d"]) -> Float32[Tensor, "n d"]:
    """Return the points in float32, centred and scaled to [-1, 1], to keep squares in range and precise.

    Float64 points, and points far from the origin, are centred in float64 first.
    """
    if x.dtype == torch.float64 or not spread_out(x, FAR):
        x = scaled(x, power_of_two(x))
        x = x - x.mean(0)
        return (x / x.abs().max().clamp(min=torch.finfo(torch.float64).tiny)).float()
    x = x.detach().float()
    x = x / x.abs().max().clamp(min=torch.finfo(torch.float32).tiny)
    return x - x.mean(0)


def _squared_distances(
    x: Float32[Tensor, "n d"], norms: Float32[Tensor, " n"], rows: Int64[Tensor, " t"]
) -> Float32[Tensor, "t n"]:
    return (norms[rows, None] - 2 * x[rows] @ x.T + norms).clamp(min=0)


def _assign(
    x: Float32[Tensor, "n d"], norms: Float32[Tensor, " n"], centroids: Float32[Tensor, "k d"]
) -> tuple[Int64[Tensor, " n"], Float32[Tensor, " n"]]:
    """Return the nearest centroid of every point and the squared distance to it."""
    half = torch.linalg.vecdot(centroids, centroids) / 2
    best = [(block @ centroids.T - half).max(1) for block in x.split(_rows(len(centroids)))]
    scores, clusters = (torch.cat(parts) for parts in zip(*best, strict=True))
    return clusters, (norms - 2 * scores).clamp(min=0)


def _means(
    x: Float32[Tensor, "n d"], clusters: Int64[Tensor, " n"], distances: Float32[Tensor, " n"], k: int
) -> Float32[Tensor, "k d"]:
    """Return the mean of every cluster; an empty cluster gets one of the points farthest from their centroids.

    Sums are products with one-hot rows, which are deterministic; scattered additions on a GPU are not.
    """
    sums, counts = x.new_zeros(k, x.shape[1]), x.new_zeros(k)
    for block, names in zip(x.split(_rows(k)), clusters.split(_rows(k)), strict=True):
        member = x.new_zeros(len(block), k).scatter_(1, names[:, None], 1.0)
        sums += member.T @ block
        counts += member.sum(0)
    empty = counts == 0
    farthest = x[distances.topk(k).indices]
    nth_empty = (empty.cumsum(0) - 1).clamp(min=0)
    return torch.where(empty[:, None], farthest[nth_empty], sums / counts.clamp(min=1)[:, None])


def _rows(k: int) -> int:
    return max(1, SCORES // k)


def _fill_empty(
    clusters: Int64[Tensor, " n"], distances: Float32[Tensor, " n"], k: int
) -> Int64[Tensor, " n"]:
    sizes = torch.bincount(clusters, minlength=k).tolist()
    empty = [c for c in range(k) if sizes[c] == 0]
    if not empty:
        return clusters
    names = clusters.tolist()
    for point in distances.sort(descending=True, stable=True).indices.tolist():
        if empty and sizes[names[point]] > 1:
            sizes[names[point]] -= 1
            names[point] = empty.pop(0)
    return torch.tensor(names, device=clusters.device)
