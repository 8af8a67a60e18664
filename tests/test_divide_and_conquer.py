import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from divconq import DivideAndConquer
from divconq.losses import NPairsLoss, TripletLoss


def make(loss=None, k_max=4, **arguments):
    torch.manual_seed(0)
    labels = torch.arange(96) % 8
    x = torch.randn(8, 6)[labels] + 0.3 * torch.randn(96, 6)
    model = nn.Linear(6, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    dc = DivideAndConquer(
        loss or TripletLoss(), labels, optimizer, dim=8, k_max=k_max, divide_every=2, **arguments
    )
    return dc, model, optimizer, x, labels


@pytest.mark.parametrize("workers", [0, 2])
def test_every_batch_comes_from_the_cluster_it_is_given_with(workers):
    dc, model, _, x, labels = make()
    data = TensorDataset(x, labels, torch.arange(96))
    loader = DataLoader(data, batch_sampler=dc.batches(8), num_workers=workers)
    seen = []
    for epoch in range(5):
        for cluster, (_, _, index) in dc.epoch(epoch, loader, lambda: dc.conquer(model(x)).detach()):
            assert (dc.partition.labels[index] == cluster).all()
        seen.append((dc.partition.k, dc.masks.k))
    assert seen == [(1, 1), (1, 1), (2, 2), (2, 2), (4, 4)]


def test_masks_and_loss_parameters_join_the_optimiser_and_learn():
    loss = NPairsLoss()
    dc, model, optimizer, x, labels = make(loss, mask_lr=1e-2)
    joined = optimizer.param_groups[1]
    assert {id(p) for p in joined["params"]} == {id(dc.masks.weight), id(loss.scale)}
    assert joined["lr"] == 1e-2
    before = dc.masks.weight.detach().clone()
    dc(model(x[:16]), labels[:16], 0).backward()
    optimizer.step()
    assert not torch.equal(dc.masks.weight, before)
    assert loss.scale.item() != 1.0


def test_fixed_masks_need_no_group():
    _, _, optimizer, _, _ = make(masks="fixed")
    assert len(optimizer.param_groups) == 1


def test_conquer_is_the_final_embedding():
    dc, model, _, x, _ = make()
    dc.divide(model(x).detach(), seed=0)
    f = model(x)
    assert torch.allclose(dc.conquer(f), F.normalize(f * dc.masks.weight[:2].relu().sum(0)))


def test_a_loader_without_cluster_batches_is_refused():
    dc, _, _, x, labels = make()
    with pytest.raises(ValueError, match=r"batch_sampler=dc.batches"):
        next(dc.epoch(0, DataLoader(TensorDataset(x, labels), batch_size=8), lambda: x))
