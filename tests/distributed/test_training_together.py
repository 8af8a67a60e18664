"""Several processes train as one process does: losses, gradients, parameters."""

import functools
import random

import pytest
import torch
from torch import nn

from distributed.ranks import needs_gloo, run
from divconq.config import OptimisationConfig
from divconq.distributed import average_gradients, gather, is_first, shard
from divconq.distributed.collectives import own_randomness
from divconq.losses import make_loss
from divconq.losses.memory import Memory
from divconq.masks import Masks
from divconq.model import Embedder, SmallNet
from divconq.objective import Objective
from divconq.training.averaging import WeightAverages
from divconq.training.learning_rate import LearningRate
from divconq.training.optimizer import make_optimizer
from divconq.training.step import TrainingStep

pytestmark = needs_gloo

STEPS, CLASSES, DIM = 20, 4, 8
LOSSES = {
    "margin": {"arguments": {"learn_beta": True}},
    "triplet": {},
    "soft_triplet": {},
    "npairs": {},
    "proxy_anchor": {},
    "multi_similarity, memory": {},
    "ProxyAnchorLoss": {},
    "ContrastiveLoss": {"miner": "MultiSimilarityMiner"},
}
BATCHES = {2: 12, 4: 10}  # by number of ranks: equal shares for 2, unequal ones for 4


def make(loss):
    """Return the network, an objective with two random masks, and the optimizer.

    In double precision, because Adam takes full steps along gradients that are only rounding errors.
    """
    torch.manual_seed(0)
    model = Embedder(SmallNet(), SmallNet.num_features, DIM, dropout=0.0).double()
    masks = Masks(DIM, k_max=4)
    masks.split_()
    nn.init.uniform_(masks.weight, 0.2, 1.5)
    name, _, memory = loss.partition(", ")
    base = make_loss(name, **LOSSES[loss], num_classes=CLASSES, dim=DIM)
    objective = Objective(base, masks, 0.5, Memory(17, DIM) if memory else None).double()
    adam = make_optimizer(model, lr=1e-4, weight_decay=1e-3)
    adam.add_param_group({"params": [*objective.parameters()], "lr": 1e-3, "weight_decay": 0.0})
    return model, objective, adam


def batch(step, count):
    """Return images of a few classes, one pattern each plus noise, their labels and a cluster."""
    patterns = torch.rand(CLASSES, 3, 16, 16, generator=torch.Generator().manual_seed(99))
    noise = torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(step))
    labels = torch.arange(count) % CLASSES
    return (patterns[labels] + 0.5 * noise).double(), labels, step % 2


def history(loss, count, ddp=False):
    """Return the loss of every step, the final parameters and, on rank 0, the gradients of every step."""
    model, objective, adam = make(loss)
    random.seed(1)
    network = nn.parallel.DistributedDataParallel(model) if ddp else model
    parameters = [*model.parameters(), *objective.parameters()]
    torch.manual_seed(1)
    losses, gradients = [], []
    for step in range(STEPS):
        x, labels, cluster = batch(step, count)
        with own_randomness():
            f = network(x[shard(count)])
        value = objective(gather(f, count), labels, cluster)
        adam.zero_grad()
        value.backward()
        if not ddp:
            average_gradients(parameters)
        losses.append(value.detach())
        if is_first():
            gradients.append(flat(p.grad for p in parameters))
        adam.step()
    return torch.stack(losses), flat(parameters), gradients


def flat(tensors):
    return torch.cat([t.detach().flatten() for t in tensors])


def histories(count):
    return {loss: history(loss, count) for loss in LOSSES}


@pytest.fixture(scope="module", params=BATCHES)
def ranks(request):
    return request.param


@pytest.fixture(scope="module")
def alone(ranks):
    return histories(BATCHES[ranks])


@pytest.fixture(scope="module")
def shared(ranks, tmp_path_factory):
    return run(ranks, functools.partial(histories, BATCHES[ranks]), tmp_path_factory.mktemp("ranks"))


def assert_same(got, wanted):
    losses, parameters, gradients = wanted
    assert gradients[0].norm() > 1
    assert torch.allclose(got[0], losses, rtol=0, atol=1e-9)
    assert torch.allclose(got[1], parameters, rtol=0, atol=1e-9)
    largest = max(1.0, *(gradient.abs().max() for gradient in gradients))
    for one, other in zip(got[2], gradients, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-9 * largest)


@pytest.mark.parametrize("loss", LOSSES)
def test_ranks_train_as_one_process(alone, shared, loss):
    assert_same(shared[0][loss], alone[loss])


def test_distributed_data_parallel_averages_too(tmp_path):
    got = run(2, functools.partial(history, "npairs", 10, ddp=True), tmp_path)
    assert_same(got[0], history("npairs", 10))


def averaged(count):
    """Return the average of the weights after some steps, and the learning rate of the last one."""
    model, objective, adam = make("npairs")
    rate = LearningRate(adam, OptimisationConfig(epochs=2, schedule="cosine", warmup_epochs=0.5))
    averages = WeightAverages(0.9, {"model": model, "masks": objective.masks})
    step = TrainingStep(model, objective, adam, averages=averages)
    for number in range(STEPS):
        rate.set(number / 10)
        x, labels, cluster = batch(number, count)
        step(x[shard(count)], labels, torch.tensor(cluster))
    return flat(averages.averages.values()), adam.param_groups[0]["lr"]


def test_all_ranks_average_as_one_process(tmp_path):
    alone, rate = averaged(12)
    told = run(2, functools.partial(averaged, 12), tmp_path)
    assert torch.allclose(told[0][0], alone, rtol=0, atol=1e-9)
    assert torch.equal(told[1][0], told[0][0])
    assert told[0][1] == told[1][1] == rate


@pytest.mark.parametrize("loss", LOSSES)
def test_all_ranks_hold_the_same_bits(shared, loss):
    for told in shared[1:]:
        assert torch.equal(told[loss][0], shared[0][loss][0])
        assert torch.equal(told[loss][1], shared[0][loss][1])
