"""k-means in float32: faiss on the CPU, torch elsewhere, from the same initial centroids."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

SCORES = 1 << 24  # point-to-centroid scores that the torch loop holds at once: 64 MiB
PLUS_PLUS_UP_TO = 256  # clusters; above it k-means++ costs more than it gains
CHECK_EVERY = 10  # iterations between looks at whether labels still change: a look waits for the device


def kmeans(x: Float[Tensor, "n d"], k: int, seed: int = 0, iterations: int = 100) -> Int64[Tensor, " n"]:
    """Labels of ``k`` clusters of small variance: Σ_c Σ_{x in c} |x - mean(c)|² → min (Lloyd's algorithm).

    Starts from k-means++, above 256 clusters from random rows. No cluster is empty: one that would be takes
    the point farthest from its centroid out of a cluster of several.

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
        labels, distances = lloyd(points, centroids, iterations)
    return _fill_empty(labels, distances, k)


def check_points(x: Tensor) -> None:
    """Refuse what cannot be clustered: not a table of points, or not finite.

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


@contextmanager
def exact_products(device: str) -> Iterator[None]:
    """Multiply float32 matrices in float32, whatever autocast and TF32 settings training uses.

    >>> with exact_products("cpu"):
    ...     (torch.ones(1, 2) @ torch.ones(2, 1)).dtype
    torch.float32
    """
    backends: Any = torch.backends
    exact: list[tuple[Any, str, str | bool]] = [(backends.cuda.matmul, "allow_tf32", False)]
    if hasattr(backends.cuda.matmul, "fp32_precision"):  # torch 2.9 renamed the setting and refuses a mixture
        exact = [(b.matmul, "fp32_precision", "ieee") for b in (backends.cuda, backends.mkldnn)]
    before = [getattr(holder, name) for holder, name, _ in exact]
    try:
        for setting in exact:
            setattr(*setting)
        with torch.autocast(device, enabled=False):
            yield
    finally:
        for (holder, name, _), value in zip(exact, before, strict=True):
            setattr(holder, name, value)


def initial_centroids(x: Float32[Tensor, "n d"], k: int, seed: int) -> Float32[Tensor, "k d"]:
    """``k`` rows of ``x``: greedy k-means++ for few clusters, distinct random rows for many.

    Random numbers are drawn on the CPU, so that every device starts from the same rows.

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
        # Of exponential clocks at rates `nearest`, the first to ring is a draw in proportion to the rates.
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
    """Labels and squared distances to the centroids after Lloyd's ``iterations``, on the device of ``x``.

    >>> lloyd_torch(torch.tensor([[0.0], [2.0], [9.0]]), torch.tensor([[0.0], [2.0]]), iterations=5)
    (tensor([0, 0, 1]), tensor([1., 1., 0.]))
    """
    norms = torch.linalg.vecdot(x, x)
    labels, distances = _assign(x, norms, centroids)
    for done in range(1, iterations + 1):
        before = labels
        labels, distances = _assign(x, norms, _means(x, labels, distances, len(centroids)))
        if done % CHECK_EVERY == 0 and torch.equal(labels, before):
            break
    return labels, distances


def lloyd_faiss(
    x: Float32[Tensor, "n d"], centroids: Float32[Tensor, "k d"], iterations: int
) -> tuple[Int64[Tensor, " n"], Float32[Tensor, " n"]]:
    """Labels and squared distances as ``lloyd_torch`` gives them, by faiss, for tensors on the CPU.

    >>> lloyd_faiss(torch.tensor([[0.0], [2.0], [9.0]]), torch.tensor([[0.0], [2.0]]), iterations=5)
    (tensor([0, 0, 1]), tensor([1., 1., 0.]))
    """
    import faiss

    (n, d), k = x.shape, len(centroids)
    runner = faiss.Kmeans(d, k, niter=iterations, min_points_per_centroid=1, max_points_per_centroid=n)
    runner.train(x.numpy(), init_centroids=centroids.numpy())
    distances, labels = runner.index.search(x.numpy(), 1)
    return torch.from_numpy(labels[:, 0]), torch.from_numpy(distances[:, 0])


def _has_faiss() -> bool:
    try:
        import faiss  # noqa: F401
    except ImportError:
        return False
    return True


def _standardise(x: Float[Tensor, "n d"]) -> Float32[Tensor, "n d"]:
    """Points in float32, moved and scaled so that no square overflows and differences keep their digits."""
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
    """Find the nearest centroid of every point, and the squared distance to it."""
    half = torch.linalg.vecdot(centroids, centroids) / 2
    best = [(block @ centroids.T - half).max(1) for block in x.split(_rows(len(centroids)))]
    scores, labels = (torch.cat(parts) for parts in zip(*best, strict=True))
    return labels, (norms - 2 * scores).clamp(min=0)


def _means(
    x: Float32[Tensor, "n d"], labels: Int64[Tensor, " n"], distances: Float32[Tensor, " n"], k: int
) -> Float32[Tensor, "k d"]:
    """Average every cluster; empty clusters get the points farthest from their centroids.

    Sums by products with one-hot rows: unlike scattered additions, they come out the same every time.
    """
    sums, counts = x.new_zeros(k, x.shape[1]), x.new_zeros(k)
    for block, names in zip(x.split(_rows(k)), labels.split(_rows(k)), strict=True):
        member = x.new_zeros(len(block), k).scatter_(1, names[:, None], 1.0)
        sums += member.T @ block
        counts += member.sum(0)
    empty = counts == 0
    farthest = x[distances.topk(k).indices]
    nth_empty = (empty.cumsum(0) - 1).clamp(min=0)
    return torch.where(empty[:, None], farthest[nth_empty], sums / counts.clamp(min=1)[:, None])


def _rows(k: int) -> int:
    return max(1, SCORES // k)


def _fill_empty(labels: Int64[Tensor, " n"], distances: Float32[Tensor, " n"], k: int) -> Int64[Tensor, " n"]:
    sizes = torch.bincount(labels, minlength=k).tolist()
    empty = [c for c in range(k) if sizes[c] == 0]
    if not empty:
        return labels
    names = labels.tolist()
    for point in distances.sort(descending=True, stable=True).indices.tolist():
        if empty and sizes[names[point]] > 1:
            sizes[names[point]] -= 1
            names[point] = empty.pop(0)
    return torch.tensor(names, device=labels.device)
