import sys

import jaxtyping
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from divconq.accel.precision import exact_products
from divconq.division import kmeans
from divconq.division.lloyd import initial_centroids, lloyd_faiss, lloyd_torch

MODULE = sys.modules["divconq.division.lloyd"]  # as an attribute, that name is the function


def random_points(n, d, seed):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def blobs(k, per_blob, d, seed, spread=0.05):
    centres = torch.eye(k, d) * 3
    truth = torch.arange(k).repeat_interleave(per_blob)
    return centres[truth] + spread * random_points(k * per_blob, d, seed), truth


def objective(x, labels):
    return sum(float((x[labels == c] - x[labels == c].mean(0)).square().sum()) for c in labels.unique())


def lloyd_by_hand(x, centroids, iterations):
    """Run Lloyd's algorithm with plain loops in float64, for data without empty clusters."""
    points, means = x.double(), centroids.double()
    for step in range(iterations + 1):
        labels = torch.tensor(
            [min(range(len(means)), key=lambda c: float((p - means[c]).norm())) for p in points]
        )
        if step < iterations:
            means = torch.stack([points[labels == c].mean(0) for c in range(len(means))])
    return labels


@pytest.mark.parametrize("k", [2, 4, 8, 16])
def test_separated_blobs_are_found(k):
    x, truth = blobs(k, 30, 16, seed=k)
    for seed in range(3):
        labels = kmeans(x, k, seed=seed)
        assert len({(int(a), int(b)) for a, b in zip(labels, truth, strict=True)}) == k


@pytest.mark.parametrize("lloyd", [lloyd_torch, lloyd_faiss])
@pytest.mark.parametrize(("n", "k", "iterations"), [(40, 3, 0), (40, 3, 1), (60, 5, 4)])
def test_torch_and_faiss_equal_plain_loops(lloyd, n, k, iterations):
    x = random_points(n, 4, n + k)
    labels, distances = lloyd(x, x[:k], iterations)
    assert torch.equal(labels, lloyd_by_hand(x, x[:k], iterations))
    assert distances.shape == (n,)


@pytest.mark.parametrize(
    ("n", "d", "k"),
    [(30, 3, 1), (50, 8, 2), (200, 16, 7), (500, 32, 20), (700, 8, 300), (40, 5, 39), (40, 5, 40)],
)
def test_faiss_and_torch_agree(n, d, k, monkeypatch):
    x = random_points(n, d, n + k)
    by_faiss = kmeans(x, k, seed=1)
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert torch.equal(by_faiss, kmeans(x, k, seed=1))


def test_blocks_do_not_change_the_labels(monkeypatch):
    x = random_points(300, 6, 0)
    whole, _ = lloyd_torch(x, x[:9], 20)
    monkeypatch.setattr(MODULE, "SCORES", 9 * 7)
    assert torch.equal(whole, lloyd_torch(x, x[:9], 20)[0])


def test_converged_kmeans_stops_early(monkeypatch):
    x, _ = blobs(4, 20, 8, seed=0)
    rounds = []
    means = MODULE._means
    monkeypatch.setattr(MODULE, "_means", lambda *args: rounds.append(1) or means(*args))
    labels, _ = lloyd_torch(x, x[::20], 1000)
    assert len(rounds) == MODULE.CHECK_EVERY
    assert torch.equal(labels, lloyd_faiss(x, x[::20], 100)[0])


def test_kmeans_continues_until_convergence():
    x = random_points(1000, 2, 0)
    early, settled = lloyd_torch(x, x[:8], 10)[0], lloyd_torch(x, x[:8], 60)[0]
    assert not torch.equal(early, settled)
    assert torch.equal(settled, lloyd_faiss(x, x[:8], 60)[0])


@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_as_good_as_scikit_learn(spread):
    """Compare the mean over seeds, because a single seed may give a worse result."""
    from sklearn.cluster import KMeans

    x, _ = blobs(10, 20, 10, seed=0, spread=spread)
    theirs = [
        KMeans(10, n_init=1, max_iter=100, random_state=seed).fit(x.numpy()).inertia_ for seed in range(8)
    ]
    ours = [objective(x, kmeans(x, 10, seed=seed)) for seed in range(8)]
    assert sum(ours) <= 1.03 * sum(theirs)


def test_initial_centroids_are_distinct_rows():
    x = random_points(600, 4, 0)
    for k in (2, 256, 257, 600):
        centroids = initial_centroids(x, k, seed=5)
        assert len(centroids.unique(dim=0)) == k
        assert bool((centroids[:, None] == x).all(2).any(1).all())


def test_plus_plus_draws_far_points_in_proportion():
    """One draw selects the far point with probability 81 / 82; the best of two draws nearly always does."""
    x = torch.tensor([[0.0], [1.0], [10.0]])
    picks = [tuple(initial_centroids(x, 2, seed).flatten().sort().values.tolist()) for seed in range(200)]
    assert sum(10.0 in pick for pick in picks) > 190
    assert {(0.0, 10.0), (1.0, 10.0)} <= set(picks)


@given(
    n=st.integers(1, 25),
    distinct=st.integers(1, 6),
    k=st.integers(1, 25),
    seed=st.integers(0, 9),
    torch_=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_no_cluster_is_empty_even_among_duplicates(n, distinct, k, seed, torch_):
    k = min(k, n)
    rows = torch.randint(distinct, (n,), generator=torch.Generator().manual_seed(seed))
    x = random_points(distinct, 3, seed)[rows]
    with pytest.MonkeyPatch.context() as patch:
        if torch_:
            patch.setitem(sys.modules, "faiss", None)
        labels = kmeans(x, k, seed=seed)
    assert labels.dtype == torch.int64
    assert sorted(labels.unique().tolist()) == list(range(k))


def test_empty_cluster_gets_a_new_centroid():
    x = torch.tensor([[100.0], [101.0], [110.0], [111.0]])
    labels, _ = lloyd_torch(x, torch.tensor([[100.0], [500.0]]), 5)
    assert labels[0] == labels[1] != labels[2] == labels[3]


@pytest.mark.parametrize("faiss", [True, False])
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e25, 1e38])
def test_scale_and_origin_do_not_matter(scale, faiss, monkeypatch):
    if not faiss:
        monkeypatch.setitem(sys.modules, "faiss", None)
    x, truth = blobs(3, 10, 4, seed=0)
    for y in (x / x.abs().max() * scale, x + 100_000):
        assert len({(int(a), int(b)) for a, b in zip(kmeans(y, 3), truth, strict=True)}) == 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_float_types_are_converted(dtype):
    x = random_points(50, 4, 0).to(dtype)
    assert torch.equal(kmeans(x, 3), kmeans(x.float(), 3))


def test_kmeans_is_deterministic_and_keeps_its_input():
    x = random_points(400, 6, 0).requires_grad_()
    before = x.detach().clone()
    torch.manual_seed(1)
    first = kmeans(x, 11, seed=4)
    torch.manual_seed(2)
    assert torch.equal(first, kmeans(x, 11, seed=4))
    assert torch.equal(x.detach(), before)
    assert len({tuple(kmeans(x, 11, seed=s).tolist()) for s in range(4)}) > 1


def test_exact_products_restores_settings():
    x = torch.rand(4, 4)
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16), exact_products("cpu"):
            assert (x @ x).dtype == torch.float32
            if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
                assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_errors(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # so that our own errors are reached
    x = torch.ones(3, 2)
    for k, message in ((0, "k must be at least 1, got 0"), (4, "got k = 4 for 3 points; use a smaller k")):
        with pytest.raises(ValueError, match=message):
            kmeans(x, k)
    with pytest.raises(ValueError, match=r"got \(6,\); use x.flatten\(1\)"):
        kmeans(x.flatten(), 2)
    for bad in ("nan", "inf"):
        with pytest.raises(ValueError, match="NaN or infinity in 1 of 2 rows"):
            kmeans(torch.tensor([[1.0, float(bad)], [0.0, 0.0]]), 1)
    with pytest.raises(ValueError, match="NaN or infinity in 1 of 2 rows"):
        kmeans(torch.tensor([[1e300], [1.0]], dtype=torch.float64), 1)


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "d", "k"), [(500, 32, 20), (2000, 64, 300)])
def test_cuda_and_cpu_agree(n, d, k):
    x = random_points(n, d, n)
    on_device = kmeans(x.cuda(), k, seed=1)
    assert on_device.is_cuda
    assert (on_device.cpu() == kmeans(x, k, seed=1)).float().mean() > 0.99
    assert torch.equal(on_device, kmeans(x.cuda(), k, seed=1))
