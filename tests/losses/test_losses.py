import pytest
import torch
from hypothesis import given, settings
from slow_losses import (
    assert_same,
    batches,
    random_points,
    random_uniform,
    slow_margin,
    slow_npairs,
    slow_soft_triplet,
    slow_triplet,
)
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode

from divconq.losses import (
    LOSSES,
    MarginLoss,
    MultiSimilarityLoss,
    NPairsLoss,
    ProxyAnchorLoss,
    SoftTripletLoss,
    TripletLoss,
)

many = settings(max_examples=40, deadline=None, derandomize=True)
ON_PAIRS = {
    **{name: cls for name, cls in LOSSES.items() if cls is not ProxyAnchorLoss},
    "margin, learned beta": lambda: MarginLoss(num_classes=10),
    "triplet, as the authors": lambda: TripletLoss(squared=False, all_pairs=True),
}
EVERY = {**ON_PAIRS, "proxy_anchor": lambda: ProxyAnchorLoss(num_classes=10, dim=128)}
each_loss = pytest.mark.parametrize("make", ON_PAIRS.values(), ids=ON_PAIRS.keys())
every_loss = pytest.mark.parametrize("make", EVERY.values(), ids=EVERY.keys())


@given(batches())
@many
def test_margin_is_the_loop(batch):
    x, labels = batch
    uniform = random_uniform(len(x), len(x))
    loss = MarginLoss(alpha=0.15, beta=1.1)
    betas = torch.full((len(x),), 1.1, dtype=torch.float64)
    assert_same(
        lambda z: loss(z, labels, uniform=uniform),
        lambda z: slow_margin(z, labels, uniform, 0.15, betas),
        x,
    )


@pytest.mark.parametrize("without_replacement", [False, True])
@pytest.mark.parametrize("equal_pairs", [False, True])
@given(batch=batches())
@many
def test_margin_with_its_switches_is_the_loop(batch, without_replacement, equal_pairs):
    x, labels = batch
    uniform = random_uniform(len(x), len(x))
    loss = MarginLoss(without_replacement=without_replacement, equal_pairs=equal_pairs)
    betas = torch.full((len(x),), 1.2, dtype=torch.float64)
    assert_same(
        lambda z: loss(z, labels, uniform=uniform),
        lambda z: slow_margin(z, labels, uniform, 0.2, betas, without_replacement, equal_pairs),
        x,
    )


@given(batches())
@many
def test_margin_with_learned_beta_is_the_loop(batch):
    x, labels = batch
    uniform = random_uniform(len(x), len(x))
    loss = MarginLoss(num_classes=4).double()
    with torch.no_grad():
        loss.beta.copy_(torch.tensor([0.9, 1.05, 1.2, 1.7]))
    assert_same(
        lambda z: loss(z, labels, uniform=uniform),
        lambda z: slow_margin(z, labels, uniform, 0.2, [loss.beta[label] for label in labels]),
        x,
        [loss.beta],
    )


@given(batches())
@many
def test_triplet_is_the_loop(batch):
    x, labels = batch
    assert_same(lambda z: TripletLoss(0.3)(z, labels), lambda z: slow_triplet(z, labels, 0.3), x)


@pytest.mark.parametrize("squared", [True, False])
@pytest.mark.parametrize("all_pairs", [True, False])
@given(batch=batches())
@many
def test_triplet_with_its_switches_is_the_loop(batch, squared, all_pairs):
    x, labels = batch
    assert_same(
        lambda z: TripletLoss(0.25, squared, all_pairs)(z, labels),
        lambda z: slow_triplet(z, labels, 0.25, squared, all_pairs),
        x,
    )


def test_triplet_over_all_pairs_counts_pairs_without_loss():
    """Four positive pairs; only those of the first class are closer to the negative than the margin."""
    x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [0.0, 1.0]])
    labels = torch.tensor([0, 0, 1, 1])
    d = {"ap": 0.8**0.5, "far": 2**0.5, "near": 0.4**0.5}
    terms = [d["ap"] - d["far"] + 0.2, d["ap"] - d["near"] + 0.2, 0.0, 0.0]
    expected = sum(max(term, 0) for term in terms)
    assert sum(term > 0 for term in terms) == 1
    for all_pairs, count in ((False, 1), (True, 4)):
        value = TripletLoss(squared=False, all_pairs=all_pairs)(x, labels)
        torch.testing.assert_close(value, torch.tensor(expected / count))


@given(batches())
@many
def test_soft_triplet_is_the_loop(batch):
    x, labels = batch
    assert_same(lambda z: SoftTripletLoss()(z, labels), lambda z: slow_soft_triplet(z, labels), x)


@given(batches())
@many
def test_npairs_is_the_loop(batch):
    x, labels = batch
    loss = NPairsLoss(scale=1.5).double()
    assert_same(lambda z: loss(z, labels), lambda z: slow_npairs(z, labels, loss.scale), x, [loss.scale])


def test_a_larger_batch_is_the_loop_too():
    x, labels = random_points(seed=5, count=24, dim=16), torch.arange(24) % 7
    uniform = random_uniform(0, 24)
    betas = torch.full((24,), 1.2, dtype=torch.float64)
    npairs = NPairsLoss()
    assert_same(
        lambda z: MarginLoss()(z, labels, uniform=uniform),
        lambda z: slow_margin(z, labels, uniform, 0.2, betas),
        x,
    )
    assert_same(lambda z: TripletLoss()(z, labels), lambda z: slow_triplet(z, labels, 0.2), x)
    assert_same(lambda z: SoftTripletLoss()(z, labels), lambda z: slow_soft_triplet(z, labels), x)
    assert_same(lambda z: npairs(z, labels), lambda z: slow_npairs(z, labels, npairs.scale.double()), x)


def test_margin_without_a_near_negative_keeps_the_positive_term():
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-0.8, -0.6]])
    value = MarginLoss(alpha=0.2, beta=1.2)(x, torch.tensor([0, 0, 1]))
    torch.testing.assert_close(value, torch.tensor(2**0.5 - 1))


def test_margin_of_fewer_dimensions_draws_more_than_the_nearest_negatives():
    draw = torch.Generator().manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(48, 32, generator=draw) + 0.5)
    labels, uniform = torch.arange(48) % 12, torch.rand(48, 48, generator=draw)
    whole, all_of_them, few = (
        MarginLoss(sampling_dim=dim)(x, labels, uniform=uniform) for dim in (None, 32, 4)
    )
    assert whole == all_of_them
    assert few < whole, "negatives that are farther away cost less"


def test_margin_draws_from_the_default_generator():
    x, labels = random_points(seed=1).float(), torch.arange(24) % 4
    values = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        values.append(MarginLoss()(x, labels).item())
    assert values[0] == values[1] != values[2]


@each_loss
@pytest.mark.parametrize(
    "labels",
    [[3], [3, 3], [1, 2], [5, 5, 5, 5], [0, 1, 2, 3, 4]],
    ids=["one image", "two of one class", "two of two classes", "one class", "all singletons"],
)
@pytest.mark.parametrize("same_point", [False, True])
def test_without_an_anchor_the_loss_and_its_gradients_are_zero(make, labels, same_point):
    loss = make()
    x = random_points(seed=0, count=len(labels)).float()
    x = (x[:1].repeat(len(labels), 1) if same_point else x).requires_grad_()
    value = loss(x, torch.tensor(labels))
    value.backward()
    assert value.item() == 0
    assert all((p.grad == 0).all() for p in [x, *loss.parameters()])


@each_loss
def test_a_batch_of_one_point_has_finite_gradients(make):
    loss = make()
    x = torch.tensor([[0.6, 0.8]]).repeat(6, 1).requires_grad_()
    value = loss(x, torch.arange(6) % 2)
    value.backward()
    assert value.item() > 0
    assert all(p.grad.isfinite().all() for p in [x, *loss.parameters()])


@each_loss
@pytest.mark.parametrize("n", [1, 6])
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_no_intermediate_gradient_is_nan(make, n):
    x = torch.tensor([[0.6, 0.8]]).repeat(n, 1).requires_grad_()
    with torch.autograd.detect_anomaly():
        make()(x, torch.arange(n) % 2).backward()
    assert x.grad.isfinite().all()


@each_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_copies_in_many_dimensions_have_finite_gradients_in_their_dtype(make, dtype):
    x = random_points(seed=0, count=30, dim=512).to(dtype)
    x = torch.nn.functional.normalize(x, dim=1)[torch.arange(60) % 30].requires_grad_()
    value = make()(x, torch.arange(60) % 7)
    value.backward()
    assert value.dtype == x.grad.dtype == dtype
    assert value.item() > 0
    assert x.grad.isfinite().all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: MarginLoss(alpha=-0.1),
            r"alpha must be at least 0 and beta above 0, got alpha=-0.1, beta=1.2",
        ),
        (lambda: MarginLoss(beta=0.0), r"alpha must be at least 0 and beta above 0, got alpha=0.2, beta=0.0"),
        (lambda: MarginLoss(beta=0.3, alpha=0.3), r"beta - alpha must be above 0, got beta=0.3, alpha=0.3"),
        (lambda: MarginLoss(beta=0.1), r"no positive can be close enough; raise beta or lower alpha"),
        (
            lambda: MarginLoss(beta=1.75, alpha=0.25),
            r"beta \+ alpha must be below 2, got beta=1.75, alpha=0.25",
        ),
        (lambda: MarginLoss(beta=1.9), r"no negative can be far enough; lower beta or alpha"),
        (lambda: MarginLoss(sampling_dim=1), r"sampling_dim must be at least 2, got 1"),
        (lambda: TripletLoss(float("nan")), r"alpha must be at least 0, got nan"),
        (lambda: NPairsLoss(0.0), r"scale must be above 0, got 0.0"),
        (
            lambda: MultiSimilarityLoss(beta=0.0),
            r"got alpha=2.0, beta=0.0, epsilon=0.1; the usual values are",
        ),
        (lambda: ProxyAnchorLoss(2, 8, alpha=0.0), r"alpha must be above 0, got 0.0; the usual value is 32"),
    ],
)
def test_impossible_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


class NoHost(TorchDispatchMode):
    """Refuse operations that wait for the device although their result has a known shape."""

    WAITS = ("multinomial", "_to_copy", "lift_fresh", "equal.default", "aten.copy_")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(name in str(func) for name in self.WAITS):
            raise DataDependentOutputException(func)
        return func(*args, **(kwargs or {}))


def step_without_values(make):
    """Run forward and backward on tensors with shapes but without values."""
    with FakeTensorMode():
        loss = make()
        x = torch.empty(8, 128, requires_grad=True)
        labels = torch.empty(8, dtype=torch.int64)
        with NoHost():
            loss(x, labels).backward()
    return [p.grad for p in [x, *loss.parameters()]]


@every_loss
def test_no_loss_reads_a_value_from_the_device(make):
    assert all(grad is not None for grad in step_without_values(make))


@pytest.mark.parametrize(
    "peek",
    [
        lambda x, labels: x[labels.nonzero()[:, 0]].sum(),
        lambda x, labels: x[labels == 1].sum(),
        lambda x, labels: x.sum() * x.max().item(),
        lambda x, labels: x.sum() if (labels == 0).any() else -x.sum(),
        lambda x, labels: x[torch.multinomial(x.detach().abs(), 1)[:, 0]].sum(),
        lambda x, labels: x.sum() * torch.tensor(2.0),
    ],
    ids=["nonzero", "mask", "item", "if", "multinomial", "constant"],
)
def test_reading_a_value_is_detected(peek):
    class Peek(torch.nn.Module):
        def forward(self, x, labels):
            return peek(x, labels)

    with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
        step_without_values(Peek)


@pytest.mark.gpu
@every_loss
@pytest.mark.parametrize("n", [80, 112, 1100])
def test_a_loss_can_be_captured_in_a_cuda_graph(make, n):
    torch.manual_seed(0)
    loss = make().cuda()
    x = torch.nn.functional.normalize(torch.randn(n, 128, device="cuda"), dim=1).requires_grad_()
    labels = torch.arange(n, device="cuda") % 10

    def step():
        for p in [x, *loss.parameters()]:
            p.grad = None
        value = loss(x, labels)
        value.backward()
        return value

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = step()
    captured = [p.grad for p in [x, *loss.parameters()]]

    with torch.no_grad():
        x.copy_(torch.nn.functional.normalize(torch.randn_like(x), dim=1))
        labels.copy_(labels.flip(0) // 2)
    torch.cuda.manual_seed(7)
    graph.replay()
    replayed = [t.clone() for t in [value, *captured]]
    torch.cuda.manual_seed(7)
    eager = step()
    for a, b in zip(replayed, [eager, *(p.grad for p in [x, *loss.parameters()])], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
