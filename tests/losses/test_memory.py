"""The memory of past embeddings: the ring, the objective with it, and training with it."""

from collections import deque

import pytest
import torch
import torch.nn.functional as F
from slow_losses import slow_multi_similarity
from torch._subclasses.fake_tensor import FakeTensorMode

from divconq.divide_and_conquer import DivideAndConquer
from divconq.losses import LOSSES, MarginLoss, MultiSimilarityLoss, NPairsLoss, make_loss
from divconq.losses.memory import Memory
from divconq.losses.pairwise import EMPTY
from divconq.masks import Masks
from divconq.objective import Objective
from divconq.train import train

ABLE = [name for name, cls in LOSSES.items() if getattr(cls, "takes_keys", False)]


@pytest.mark.parametrize("size", [1, 3, 4, 7, 12])
def test_it_holds_the_latest_images(size):
    memory, latest = Memory(size, 2), deque(maxlen=size)
    for step, count in enumerate([4, 1, 5, 4, 4, 2]):
        labels = torch.arange(count) + 10 * step
        f = torch.stack([labels.float(), -labels.float()], 1).requires_grad_()
        memory.store(f, labels)
        latest.extend(labels.tolist())
        held = [label for label in memory.labels.tolist() if label != EMPTY]
        assert sorted(held) == sorted(latest)
        filled = memory.labels != EMPTY
        assert torch.equal(memory.f[filled][:, 0], memory.labels[filled].float())
        assert torch.equal(memory.f[filled][:, 1], -memory.labels[filled].float())
        assert not memory.f.requires_grad


def split_masks(kind):
    masks = Masks(6, 4, kind)
    masks.split_()
    if kind == "learned":
        torch.nn.init.uniform_(masks.weight, 0.2, 1.0)
    return masks.double()


def batch(step, count=8):
    generator = torch.Generator().manual_seed(step)
    f = torch.randn(count, 6, generator=generator, dtype=torch.float64)
    return f, torch.randint(4, (count,), generator=generator), step % 2


@pytest.mark.parametrize("kind", ["learned", "fixed", "none"])
@pytest.mark.parametrize("conquered", [False, True])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_the_objective_with_a_memory_is_the_loop(kind, conquered, as_tensor):
    """Every step the batch is compared with itself, then with the past images in the mask of the batch."""
    masks, past = split_masks(kind), deque(maxlen=13)
    objective = Objective(MultiSimilarityLoss(), masks, 0.0, Memory(13, 6), memory_weight=0.7).double()
    for step in range(5):
        f, labels, cluster = batch(step)
        f.requires_grad_()
        mask = masks.weight[:2].relu().sum(0) if conquered else masks.weight[cluster].relu()
        z = F.normalize(f * (mask.detach() if conquered else mask))
        wanted = slow_multi_similarity(z, labels)
        if past:
            y = F.normalize(torch.stack([g for g, _ in past]) * mask).detach()
            wanted = wanted + 0.7 * slow_multi_similarity(
                z, labels, keys=(y, torch.tensor([label for _, label in past]))
            )
        given = None if conquered else torch.tensor(cluster) if as_tensor else cluster
        value = objective(f, labels, given)
        leaves = [f, *([] if conquered else masks.parameters())]
        for one, other in zip(
            [value, *torch.autograd.grad(value, leaves)],
            [wanted, *torch.autograd.grad(wanted, leaves)],
            strict=True,
        ):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-9)
        past.extend(zip(f.detach(), labels.tolist(), strict=True))


@pytest.mark.parametrize("loss", ABLE)
def test_a_step_with_an_empty_memory_is_the_plain_step(loss):
    f, labels, cluster = batch(0)
    results = []
    for memory in (None, Memory(13, 6)):
        torch.manual_seed(0)
        leaf = f.clone().requires_grad_()
        base = make_loss(loss, num_classes=4, dim=6)
        value = Objective(base, split_masks("fixed"), memory=memory).double()(leaf, labels, cluster)
        results.append((value.detach(), *torch.autograd.grad(value, leaf)))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_an_image_is_not_compared_with_itself():
    f, labels, cluster = batch(0)
    value = Objective(MarginLoss(), split_masks("fixed"), memory=Memory(8, 6)).double()(f, labels, cluster)
    torch.manual_seed(0)
    objective = Objective(MarginLoss(), split_masks("fixed"), memory=Memory(8, 6)).double()
    objective.memory.store(f, labels)
    assert objective(f, labels, cluster) != value


def test_images_of_other_clusters_are_negatives():
    """A batch of one class has no pair of its own; the memory has images of another cluster."""
    masks = split_masks("fixed")
    objective = Objective(NPairsLoss(), masks, memory=Memory(8, 6)).double()
    f, _, _ = batch(0)
    assert objective(f, torch.arange(8) % 2, 1) > 0
    alone = Objective(NPairsLoss(), masks).double()
    assert alone(f, torch.zeros(8, dtype=torch.int64), 0) == 0
    assert objective(f, torch.zeros(8, dtype=torch.int64), 0) > 0


@pytest.mark.parametrize("loss", ABLE)
def test_a_step_with_a_memory_reads_no_value_from_the_device(loss):
    from test_losses import NoHost

    with FakeTensorMode():
        objective = Objective(
            make_loss(loss, num_classes=4, dim=6), Masks(6, 4, "fixed"), memory=Memory(9, 6)
        )
        f = torch.empty(8, 6, requires_grad=True)
        labels, cluster = torch.empty(8, dtype=torch.int64), torch.empty((), dtype=torch.int64)
        with NoHost():
            objective(f, labels, cluster).backward()
    assert f.grad is not None


@pytest.mark.parametrize("loss", ["margin", "npairs", "multi_similarity"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_the_objective_compiles_as_one_graph(loss, backend, monkeypatch):
    import jaxtyping

    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    torch._dynamo.reset()  # other tests of this process may have reached the limit of recompilations
    results = []
    for compiles in (False, True):
        objective = Objective(
            make_loss(loss, num_classes=4, dim=6), split_masks("fixed"), memory=Memory(13, 6)
        ).double()
        step = (
            torch.compile(objective, backend=backend, fullgraph=True, dynamic=False)
            if compiles
            else objective
        )
        torch.manual_seed(0)
        values = []
        for number in range(4):
            f, labels, cluster = batch(number)
            f.requires_grad_()
            value = step(f, labels, torch.tensor(cluster))
            values += [value.detach(), *torch.autograd.grad(value, f)]
        results.append([*values, *objective.memory.state_dict().values()])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


@pytest.mark.parametrize("loss", ABLE)
def test_a_run_with_a_memory_differs_and_can_be_resumed(tiny, tmp_path, monkeypatch, loss):
    from test_resume import assert_same_runs, stopped_and_resumed, without_timings

    config = tiny.replace(epochs=3, loss=loss, masks="fixed", memory=30, memory_weight=0.5, finetune_from=2)
    with_memory = train(config, tmp_path / "whole")
    stopped_and_resumed(config, tmp_path / "run", monkeypatch, 3, 4)
    assert_same_runs(tmp_path / "whole", tmp_path / "run")
    if loss == "triplet":
        without = train(config.replace(memory=0), tmp_path / "without")
        assert without_timings(without) != without_timings(with_memory)


class Opaque(torch.nn.Module):
    def forward(self, z, labels):
        return z.sum()


ONLY = "margin, triplet, soft_triplet, npairs, multi_similarity"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory": 49}, "memory must be at most 48, the number of training images, got 49; lower --memory"),
        (
            {"memory": 5, "loss": "ContrastiveLoss"},
            f"memory needs a loss that compares a batch with past embeddings: {ONLY}; got ContrastiveLoss; choose",
        ),
        (
            {"memory": 5, "loss": "proxy_anchor"},
            f"past embeddings: {ONLY}; got proxy_anchor; choose one of these",
        ),
        ({"memory": -1}, "memory must be at least 0, got -1"),
    ],
)
def test_a_memory_that_cannot_be_is_refused_before_the_run(tiny, tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        train(tiny.replace(**change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_loop_of_your_own_is_refused_the_same():
    labels = torch.arange(8) % 2
    with pytest.raises(ValueError, match="memory must be at most 8"):
        DivideAndConquer(MarginLoss(), labels, dim=4, batch=4, memory=9)
    with pytest.raises(ValueError, match=f"{ONLY}; got Opaque"):
        DivideAndConquer(Opaque(), labels, dim=4, batch=4, memory=8)
    dc = DivideAndConquer(MarginLoss(), labels, dim=4, batch=4, memory=8)
    dc(torch.randn(4, 4), labels[:4], 0)
    assert dc.state_dict()["objective.memory.labels"].tolist() == [0, 1, 0, 1] + [EMPTY] * 4
