import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from pytorch_metric_learning import losses
from slow_losses import assert_same, batches, random_points, slow_proxy_anchor

from divconq.losses import ProxyAnchorLoss, make_loss

many = settings(max_examples=60, deadline=None, derandomize=True)


def loss_of(classes=4, dim=5, **arguments):
    torch.manual_seed(classes)
    return ProxyAnchorLoss(classes, dim, **arguments).double()


@given(batches())
@many
def test_proxy_anchor_is_the_loop(batch):
    x, labels = batch
    loss = loss_of(dim=x.shape[1])
    assert_same(
        lambda z: loss(z, labels), lambda z: slow_proxy_anchor(z, labels, loss.proxies), x, [loss.proxies]
    )


def test_its_arguments_are_those_of_the_loop():
    x, labels, loss = random_points(seed=3, dim=6), torch.arange(24) % 5, loss_of(8, 6, alpha=4.0, margin=0.3)
    assert_same(
        lambda z: loss(z, labels),
        lambda z: slow_proxy_anchor(z, labels, loss.proxies, alpha=4.0, margin=0.3),
        x,
        [loss.proxies],
    )


BATCHES = {
    "all classes": torch.arange(40) % 7,
    "some classes": torch.arange(40) % 3 + 2,
    "classes with one image": torch.tensor([0, 0, 0, 1, 4]),
    "one class": torch.full((12,), 3),
    "one image": torch.tensor([6]),
}


@pytest.mark.parametrize("labels", BATCHES.values(), ids=BATCHES.keys())
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ties", [False, True])
def test_it_equals_that_of_pytorch_metric_learning(labels, seed, ties):
    f = torch.randn(len(labels), 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    f = f.sign() if ties else f
    torch.manual_seed(seed)
    theirs = losses.ProxyAnchorLoss(7, 6)
    torch.manual_seed(seed)
    ours = make_loss("proxy_anchor", num_classes=7, dim=6)
    assert torch.equal(ours.proxies, theirs.proxies), "they start from the same proxies"
    results = []
    for loss, prepared in ((ours.double(), F.normalize), (theirs.double(), lambda x: x)):
        leaf = f.clone().requires_grad_()
        value = loss(prepared(leaf), labels)
        results.append((value.detach(), *torch.autograd.grad(value, [leaf, loss.proxies])))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_it_compiles_as_one_graph(backend, monkeypatch):
    import jaxtyping

    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    x, labels, loss = random_points(seed=0, dim=16), torch.arange(24) % 5, loss_of(5, 16)
    torch._dynamo.reset()  # other tests of this process may have reached the limit of recompilations
    compiled = torch.compile(loss, backend=backend, fullgraph=True, dynamic=False)
    assert_same(lambda z: compiled(z, labels), lambda z: loss(z, labels), x, [loss.proxies])
