import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from pytorch_metric_learning import losses, miners
from slow_losses import assert_same, batches, random_points, slow_multi_similarity

from divconq.losses import MultiSimilarityLoss

many = settings(max_examples=60, deadline=None, derandomize=True)


@pytest.mark.parametrize("mine", [True, False])
@given(batch=batches())
@many
def test_multi_similarity_is_the_loop(batch, mine):
    x, labels = batch
    assert_same(
        lambda z: MultiSimilarityLoss(mine=mine)(z, labels),
        lambda z: slow_multi_similarity(z, labels, mine=mine),
        x,
    )


def test_its_arguments_are_those_of_the_loop():
    x, labels = random_points(seed=5, count=24, dim=16), torch.arange(24) % 7
    given = {"alpha": 3.0, "beta": 20.0, "base": 0.3, "epsilon": 0.4}
    assert_same(
        lambda z: MultiSimilarityLoss(**given)(z, labels),
        lambda z: slow_multi_similarity(z, labels, **given),
        x,
    )


BATCHES = {
    "uniform": torch.arange(40) % 7,
    "classes with one image": torch.tensor([*range(10), *range(5), 0, 0, 1]),
    "one class": torch.zeros(12, dtype=torch.int64),
    "only singletons": torch.arange(12),
    "one class and a stranger": torch.tensor([0] * 9 + [1]),
    "two of each": torch.arange(60) // 2,
}


@pytest.mark.parametrize("labels", BATCHES.values(), ids=BATCHES.keys())
@pytest.mark.parametrize("mine", [True, False])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ties", [False, True])
def test_it_equals_that_of_pytorch_metric_learning(labels, mine, seed, ties):
    f = torch.randn(len(labels), 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if ties:
        f = f.sign()  # many copies, and many equal similarities
    miner, theirs = miners.MultiSimilarityMiner(), losses.MultiSimilarityLoss()

    def wrapped(x):
        return theirs(x, labels, miner(x, labels) if mine else None)

    assert_equal(lambda x: MultiSimilarityLoss(mine=mine)(F.normalize(x), labels), wrapped, f)


def assert_equal(ours, theirs, f):
    """Value and gradient of the embeddings agree to 1e-6, with respect to f, before it is normalised."""
    results = []
    for function in (ours, theirs):
        leaf = f.clone().requires_grad_()
        value = function(leaf)
        results.append((value.detach(), *torch.autograd.grad(value, leaf)))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("mine", [True, False])
def test_it_compiles_as_one_graph(backend, mine, monkeypatch):
    import jaxtyping

    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    x, labels = random_points(seed=0, count=24, dim=16), torch.arange(24) % 5
    loss = MultiSimilarityLoss(mine=mine)
    torch._dynamo.reset()  # other tests of this process may have reached the limit of recompilations
    compiled = torch.compile(loss, backend=backend, fullgraph=True, dynamic=False)
    assert_same(lambda z: compiled(z, labels), lambda z: loss(z, labels), x)
