import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from divconq.accel.folding import fold_batchnorm_
from divconq.losses import MarginLoss, MultiSimilarityLoss, NPairsLoss, ProxyAnchorLoss, SoftTripletLoss
from divconq.losses.memory import Memory
from divconq.masks import Masks
from divconq.model import Embedder, SmallNet
from divconq.objective import Objective
from divconq.training.optimizer import make_optimizer
from divconq.training.step import TrainingStep

STEPS = 20


class Cosines(nn.Module):
    """A loss that is not built in and can be captured."""

    def forward(self, z, labels):
        same = (labels[:, None] == labels).float()
        return ((z @ z.T) * (1 - 2 * same)).mean()


class ReadsItem(Cosines):
    def forward(self, z, labels):
        return super().forward(z, labels) * (1 + 0 * z.sum().item())


class ReadsIndices(nn.Module):
    def forward(self, z, labels):
        cosine, same = z @ z.T, labels[:, None] == labels
        return cosine[~same].mean() - cosine[same].mean()


class ReadingNet(nn.Module):
    """A backbone that cannot be captured."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 6)

    def forward(self, x):
        return self.linear(x.mean(dim=(2, 3))) * (1 + 0 * x.sum().item())


def resnet18():
    timm = pytest.importorskip("timm")
    return timm.create_model("resnet18", num_classes=0)


BACKBONES = {"small": (SmallNet, 160), "resnet18": (resnet18, 512), "reading": (ReadingNet, 6)}


def make(loss, *, backbone="small", device="cpu", dropout=0.0, lr=1e-4, memory=None, **settings):
    """Return a step with two trained masks. Equal arguments give equal steps."""
    torch.manual_seed(0)
    build, width = BACKBONES[backbone]
    model = Embedder(build(), width, 8, dropout=dropout).to(device).train()
    masks = Masks(8, k_max=4)
    masks.split_()
    nn.init.uniform_(masks.weight, 0.2, 1.5)
    past = None if memory is None else Memory(memory, 8)
    objective = Objective(copy.deepcopy(loss), masks, overlap_weight=0.5, memory=past).to(device)
    adam = make_optimizer(model, lr=lr, weight_decay=1e-3)
    adam.add_param_group({"params": [*objective.parameters()], "lr": 10 * lr, "weight_decay": 0.0})
    return TrainingStep(model, objective, adam, **settings)


def batch(i, device="cpu"):
    generator = torch.Generator().manual_seed(i)
    x, labels = torch.rand(12, 3, 32, 32, generator=generator), torch.arange(12) // 3
    return x.to(device), labels.to(device), torch.tensor(i % 2).to(device)


def parameters(step):
    named = [*step.model.named_parameters(), *step.objective.named_parameters()]
    return {name: value.detach().clone() for name, value in named}


def run(step, steps, *, conquered=False):
    """Return the losses of some steps. The batches depend on the number of steps made before."""
    losses = []
    for i in steps:
        x, labels, cluster = batch(i, step.device)
        loss, finite = step(x, labels, None if conquered else cluster)
        assert bool(finite)
        losses.append(loss.clone())
    return torch.stack(losses).cpu()


def assert_close(got, expected, tolerance=1e-4):
    assert torch.isfinite(expected).all()
    assert torch.allclose(got, expected, rtol=tolerance, atol=tolerance), (got, expected)


# On any device


@pytest.mark.parametrize("conquered", [False, True])
def test_plain_step_equals_manual_step(conquered):
    step, twin = (make(MarginLoss(), dropout=0.3) for _ in range(2))
    losses = []
    for i in range(3):
        x, labels, cluster = batch(i)
        torch.manual_seed(i)
        loss, finite = step(x, labels, None if conquered else cluster)
        torch.manual_seed(i)
        f, masks = twin.model(x), twin.objective.masks
        mask = masks.weight[:2].relu().sum(0).detach() if conquered else masks.weight[int(cluster)].relu()
        expected = twin.objective.loss(F.normalize(f * mask), labels)
        if not conquered:
            expected = expected + 0.5 * masks.overlap()
        twin.optimizer.zero_grad()
        expected.backward()
        twin.optimizer.step()
        assert torch.equal(loss, expected.detach())
        assert not loss.requires_grad
        assert bool(finite)
        losses.append(loss.item())
    assert len({*losses}) == 3
    for name, value in parameters(twin).items():
        assert torch.equal(parameters(step)[name], value), name
    assert step.way == "plain"


def test_step_reports_embeddings_that_are_not_finite():
    step = make(Cosines())
    with torch.no_grad():
        step.model.head.bias.fill_(float("inf"))
    _, finite = step(*batch(0))
    assert not bool(finite)


def test_cpu_never_captures():
    assert make(Cosines(), fast=True).way == "plain"


# On a GPU


@pytest.fixture
def precise():
    """Use full float32 precision, without code compiled by other tests."""
    torch.compiler.reset()
    parts = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [part.allow_tf32 for part in parts]
    for part in parts:
        part.allow_tf32 = False
    yield
    for part, allowed in zip(parts, before, strict=True):
        part.allow_tf32 = allowed


def said_of_capturing(record):
    return [str(one.message) for one in record if "cannot be" in str(one.message)]


@pytest.mark.gpu
@pytest.mark.usefixtures("precise")
@pytest.mark.parametrize("backbone", ["small", "resnet18"])
@pytest.mark.parametrize("loss", [NPairsLoss(), SoftTripletLoss(), Cosines()], ids=lambda x: type(x).__name__)
def test_captured_step_equals_plain_step(loss, backbone):
    plain = make(loss, backbone=backbone, device="cuda")
    fast = make(loss, backbone=backbone, device="cuda", fast=True)
    if backbone == "resnet18":
        assert fold_batchnorm_(fast.model, batch(0, "cuda")[0][:1]) == 20
    before, expected, got = parameters(fast), run(plain, range(STEPS)), run(fast, range(STEPS))
    assert fast.way == "whole"
    assert [captured.graph is not None for captured in fast.captured.values()] == [True]
    assert_close(got, expected)
    after = parameters(fast)
    assert all(not torch.equal(after[name], value) for name, value in before.items()), "all of them train"


@pytest.mark.gpu
@pytest.mark.usefixtures("precise")
@pytest.mark.parametrize(
    "loss", [MultiSimilarityLoss(), ProxyAnchorLoss(4, 8)], ids=lambda x: type(x).__name__
)
def test_captured_step_of_a_newer_loss_equals_plain_step(loss):
    plain, fast = (make(loss, device="cuda", fast=fast) for fast in (False, True))
    assert_close(run(fast, range(STEPS)), run(plain, range(STEPS)))
    assert fast.way == "whole"


@pytest.mark.gpu
@pytest.mark.usefixtures("precise")
@pytest.mark.parametrize(
    "loss", [NPairsLoss(), SoftTripletLoss(), MultiSimilarityLoss()], ids=lambda x: type(x).__name__
)
def test_a_memory_is_part_of_the_graphs(loss):
    """Also when steps in the subspaces and in the conquered space alternate, which have graphs of their own."""
    plain, fast = (make(loss, device="cuda", fast=fast, memory=30) for fast in (False, True))
    for step in range(4):
        steps, conquered = range(5 * step, 5 * step + 5), step % 2 == 1
        assert_close(run(fast, steps, conquered=conquered), run(plain, steps, conquered=conquered))
    assert fast.way == "whole"
    assert torch.equal(fast.objective.memory.labels, plain.objective.memory.labels)
    assert_close(fast.objective.memory.f, plain.objective.memory.f)


@pytest.mark.gpu
@pytest.mark.usefixtures("precise")
def test_margin_loss_draws_new_negatives_in_every_replay():
    step = make(MarginLoss(), device="cuda", fast=True, lr=0.0)
    losses = []
    x, labels, cluster = batch(0, "cuda")
    for _ in range(10):
        losses.append(step(x, labels, cluster)[0].item())
    assert step.way == "whole"
    assert len({*losses[3:]}) > 1, "the same images, other negatives"


@pytest.mark.gpu
@pytest.mark.usefixtures("precise")
def test_fine_tuning_and_frozen_backbone_have_own_graphs():
    plain, fast = (make(NPairsLoss(), device="cuda", fast=fast) for fast in (False, True))
    seen = []
    for step in (plain, fast):
        start = parameters(step)
        losses = [run(step, range(5))]
        clusters = parameters(step)
        losses.append(run(step, range(5, 10), conquered=True))
        conquered = parameters(step)
        step.model.backbone.requires_grad_(False)
        losses.append(run(step, range(10, 15)))
        rested = parameters(step)
        step.model.backbone.requires_grad_(True)
        losses.append(run(step, range(15, 18)))
        seen.append(torch.cat(losses))
        assert all(not torch.equal(clusters[name], value) for name, value in start.items())
        still = {name for name in clusters if torch.equal(conquered[name], clusters[name])}
        assert still == {"masks.weight"}
        still = {name for name in clusters if torch.equal(rested[name], conquered[name])}
        assert still == {name for name in clusters if name.startswith("backbone.")}
        assert not torch.equal(parameters(step)["backbone.0.weight"], rested["backbone.0.weight"])
    assert fast.way == "whole"
    assert {*fast.captured} == {(False, False), (True, False), (False, True)}
    assert all(captured.graph is not None for captured in fast.captured.values())
    assert_close(seen[1], seen[0])


@pytest.mark.gpu
@pytest.mark.usefixtures("precise")
def test_mask_split_keeps_the_graph():
    plain, fast = (make(NPairsLoss(), device="cuda", fast=fast) for fast in (False, True))
    expected, got = run(plain, range(6)), run(fast, range(6))
    graphs = [captured.graph for captured in fast.captured.values()]
    unsplit = run(copy.deepcopy(plain), range(6, 12))
    for step in (plain, fast):
        step.objective.masks.split_()
    expected, got = torch.cat([expected, run(plain, range(6, 12))]), torch.cat([got, run(fast, range(6, 12))])
    assert_close(got, expected)
    assert (expected[6:] - unsplit).abs().max() > 1e-2
    assert [captured.graph for captured in fast.captured.values()] == graphs
    assert None not in graphs
    assert len(graphs) == 1


@pytest.mark.gpu
@pytest.mark.usefixtures("precise")
@pytest.mark.parametrize("loss", [ReadsItem(), ReadsIndices()], ids=lambda x: type(x).__name__)
def test_loss_that_reads_from_device_keeps_captured_network(loss):
    expected = run(make(loss, device="cuda"), range(STEPS))
    step = make(loss, device="cuda", fast=True)
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        got = run(step, range(STEPS))
        run(step, range(STEPS, STEPS + 3), conquered=True)
    assert step.way == "network"
    (said,) = said_of_capturing(record)
    assert "the network is captured, the loss is not" in said
    assert_close(got, expected)
    assert len(step.captured) == 2


@pytest.mark.gpu
@pytest.mark.usefixtures("precise")
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_backbone_that_cannot_be_captured_trains_plainly(dropout):
    expected = run(make(Cosines(), backbone="reading", device="cuda"), range(STEPS))
    step = make(Cosines(), backbone="reading", device="cuda", dropout=dropout, fast=True)
    before = parameters(step)
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        got = run(step, range(STEPS))
    assert step.way == "plain"
    assert "training runs without, slower" in said_of_capturing(record)[-1]
    assert len(said_of_capturing(record)) == 2
    if dropout:
        assert all(not torch.equal(value, before[name]) for name, value in parameters(step).items())
    else:
        assert_close(got, expected)
