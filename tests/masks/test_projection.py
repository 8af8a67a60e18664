"""The projection of masks happens inside the step of the optimiser."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from divconq import DivideAndConquer
from divconq.losses import NPairsLoss
from divconq.model import Embedder, SmallNet
from divconq.training.optimizer import make_optimizer
from divconq.training.step import TrainingStep


def own_loop(activation="projected"):
    """An algorithm with K = 2 whose masks fall below 0 in a step of its optimiser."""
    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dc = DivideAndConquer(
        lambda z, y: z.sum(),
        torch.arange(16) % 4,
        optimizer,
        dim=4,
        batch=4,
        k_max=2,
        division="random",
        mask_activation=activation,
        mask_lr=10.0,
    )
    dc.divide(None, epoch=0)
    return model, optimizer, dc


def lowest_after_a_step(optimizer, dc):
    optimizer.zero_grad()
    dc.masks.active().sum().backward()  # a gradient of 1 at a rate of 10
    optimizer.step()
    return dc.masks.weight[:2].min().item()


def test_the_optimiser_projects_in_a_loop_of_ones_own():
    _, optimizer, dc = own_loop()
    assert lowest_after_a_step(optimizer, dc) == 0
    _, optimizer, dc = own_loop("straight_through")
    assert lowest_after_a_step(optimizer, dc) == -9


def test_the_projection_survives_copies_and_states():
    _, optimizer, dc = own_loop()
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    dc.load_state_dict(copy.deepcopy(dc.state_dict()))
    copied = copy.deepcopy(dc)
    assert copied.optimizer is not optimizer
    assert lowest_after_a_step(copied.optimizer, copied) == 0
    assert dc.masks.active().min() == 1, "the copy trains its own masks"
    assert lowest_after_a_step(optimizer, dc) == 0
    model, optimizer, dc = own_loop()
    dc.objective.loss = NPairsLoss()  # a lambda cannot be pickled
    file = io.BytesIO(pickle.dumps((model, optimizer, dc)))
    _, optimizer, dc = pickle.load(file)
    assert lowest_after_a_step(optimizer, dc) == 0


def test_the_state_of_an_optimiser_is_the_same_with_a_projection():
    states = [own_loop(name)[1].state_dict() for name in ("projected", "relu")]
    assert states[0] == states[1]


def test_without_an_optimiser_one_projects_oneself():
    dc = DivideAndConquer(NPairsLoss(), torch.arange(8) % 2, dim=4, batch=4, mask_activation="projected")
    dc.masks.split_()
    with torch.no_grad():
        dc.masks.weight.fill_(-1)
    dc.masks.project_()
    assert not dc.masks.weight.any()


def training_step(device="cpu", fast=False):
    """A step whose masks are all driven below 0 at once."""
    torch.manual_seed(0)
    model = Embedder(SmallNet(), SmallNet.num_features, 4, dropout=0.0).to(device).train()
    optimizer = make_optimizer(model, lr=1e-4, weight_decay=0.0)
    dc = DivideAndConquer(
        NPairsLoss(),
        torch.arange(24) % 4,
        optimizer,
        dim=4,
        batch=12,
        k_max=2,
        division="random",
        mask_activation="projected",
        mask_lr=0.3,
    )
    dc.divide(None, epoch=0)
    return dc, TrainingStep(model, dc.objective, optimizer, fast=fast)


def masks_after_steps(dc, step, count=8):
    """Return the parameters of the masks after each step; at this rate some fall below 0 without a projection."""
    seen = []
    for i in range(count):
        draw = torch.Generator().manual_seed(i)
        x, labels = torch.rand(12, 3, 32, 32, generator=draw), torch.arange(12) // 3
        cluster = torch.tensor(i % 2).to(step.device)
        step(x.to(step.device), labels.to(step.device), cluster)
        seen.append(dc.masks.weight.detach().cpu().clone())
    return torch.stack(seen)


def test_the_projection_is_part_of_the_training_step():
    seen = masks_after_steps(*training_step())
    assert (seen[3:] == 0).any(), "some entries were set to 0"
    assert seen.min() == 0, "none is below"


@pytest.mark.gpu
@pytest.mark.filterwarnings("error:the step cannot be captured")
def test_a_cuda_graph_of_the_step_holds_the_projection():
    dc, step = training_step("cuda", fast=True)
    seen = masks_after_steps(dc, step)
    assert step.way == "whole"
    assert all(one.graph is not None for one in step.captured.values())
    assert (seen[3:] == 0).any(), "the graph is replayed from the fourth step on"
    assert seen.min() == 0
