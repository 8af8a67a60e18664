import copy

import jaxtyping
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from divconq import DivideAndConquer
from divconq.config import Config
from divconq.division import DIVISIONS
from divconq.losses import NPairsLoss, TripletLoss
from divconq.masks import MASKS


def make(loss=None, **arguments):
    """An algorithm over 96 points of 16 classes in 8 super-categories, with its network and data."""
    torch.manual_seed(0)
    labels = torch.arange(96) % 16
    x = torch.randn(16, 6)[labels] + 0.3 * torch.randn(96, 6)
    model = nn.Linear(6, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    arguments = {"dim": 8, "batch": 8, "divide_every": 2, "groups": labels // 2, **arguments}
    dc = DivideAndConquer(loss or TripletLoss(), labels, optimizer, **arguments)
    return dc, model, optimizer, x, labels


def train(dc, model, optimizer, x, labels, epochs, stop_after=None):
    """A loop of one's own, from ``dc.epoch`` on; ends within the last epoch after ``stop_after`` steps."""
    for epoch in range(dc.epoch, epochs):
        batches = dc.batches(dc.sampler, epoch, lambda: dc.conquer(model(x)).detach())
        for step, (cluster, index) in enumerate(batches):
            if epoch + 1 == epochs and step == stop_after:
                return
            optimizer.zero_grad()
            dc(model(x[index]), labels[index], cluster).backward()
            optimizer.step()


@pytest.mark.parametrize("workers", [0, 2])
def test_every_batch_comes_from_the_cluster_it_is_given_with(workers):
    dc, model, _, x, labels = make()
    data = TensorDataset(x, labels, torch.arange(96))
    loader = DataLoader(data, batch_sampler=dc.sampler, num_workers=workers)
    seen = []
    for epoch in range(5):
        for cluster, (_, _, index) in dc.batches(loader, epoch, lambda: dc.conquer(model(x)).detach()):
            assert (dc.partition.clusters[index] == cluster).all()
        seen.append((dc.partition.k, dc.masks.k))
    assert seen == [(1, 1), (1, 1), (2, 2), (2, 2), (4, 4)]


def test_a_division_depends_on_seed_and_epoch():
    def clusters(epoch, seed=0):
        dc = make(division="random", seed=seed)[0]
        dc.divide(None, epoch)
        return dc.partition.clusters.tolist()

    assert clusters(2) == clusters(2)
    assert len({tuple(clusters(2)), tuple(clusters(4)), tuple(clusters(2, seed=1))}) == 3


def test_masks_and_loss_parameters_join_the_optimiser_and_learn():
    loss = NPairsLoss()
    dc, model, optimizer, x, labels = make(loss, mask_lr=1e-2, mask_weight_decay=1e-4, loss_lr=1e-1)
    _, masks, scale = optimizer.param_groups
    assert [*map(id, masks["params"])] == [id(dc.masks.weight)]
    assert [*map(id, scale["params"])] == [id(loss.scale)]
    assert (masks["lr"], masks["weight_decay"]) == (1e-2, 1e-4)
    assert (scale["lr"], scale["weight_decay"]) == (1e-1, 0.0)
    dc.divide(x, epoch=2)
    before = dc.masks.weight.detach().clone()
    old_scale = loss.scale.item()
    dc(model(x), labels, 0).backward()
    optimizer.step()
    assert not torch.equal(dc.masks.weight, before)
    moved = abs(loss.scale.item() - old_scale)
    assert moved == pytest.approx(0.1, abs=1e-3), "Adam's first step has the length of the learning rate"


def test_parameters_the_optimiser_knows_are_not_added_again():
    loss = NPairsLoss()
    labels = torch.arange(16) % 4
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    DivideAndConquer(loss, labels, optimizer, dim=8, batch=8, masks="fixed")
    assert len(optimizer.param_groups) == 1


def test_fixed_masks_need_no_group():
    _, _, optimizer, _, _ = make(masks="fixed")
    assert len(optimizer.param_groups) == 1


def test_conquer_is_the_final_embedding():
    dc, model, _, x, _ = make()
    dc.divide(model(x).detach(), epoch=2)
    f = model(x)
    assert torch.allclose(dc.conquer(f), F.normalize(f * dc.masks.weight[:2].relu().sum(0)))


def test_a_loader_without_cluster_batches_is_refused():
    dc, _, _, x, labels = make()
    with pytest.raises(ValueError, match=r"batch_sampler=dc\.sampler"):
        next(dc.batches(DataLoader(TensorDataset(x, labels), batch_size=8), 0, lambda: x))


@pytest.mark.parametrize("division", list(DIVISIONS))
@pytest.mark.parametrize("masks", list(MASKS))
def test_every_division_and_mask_kind_runs_and_reaches_k_max(division, masks):
    parts = make(division=division, masks=masks)
    train(*parts, epochs=5)
    dc = parts[0]
    assert (dc.epoch, dc.partition.k, dc.masks.k) == (5, 4, 4)


def test_embeddings_are_made_only_where_they_are_needed():
    dc, _, _, _, _ = make(division="random", divide_every=1)
    list(dc.batches(dc.sampler, 1, lambda: pytest.fail("embedded for nothing")))
    assert dc.partition.k == 2


def test_fine_tuning_gives_no_cluster_and_trains_the_conquered_space():
    dc, model, _, x, labels = make(finetune_from=3)
    clusters = {
        epoch: {cluster for cluster, _ in dc.batches(dc.sampler, epoch, lambda: model(x).detach())}
        for epoch in range(4)
    }
    assert clusters[2] == {0, 1}
    assert clusters[3] == {None}
    expected = dc.loss(dc.conquer(model(x)), labels)
    assert torch.equal(dc(model(x), labels, None), expected)


@pytest.mark.parametrize("stop_after", [None, 5])
def test_a_fresh_object_goes_on_from_the_state(stop_after):
    """All state is in ``state_dict()``: the second half of a run needs nothing else of the first."""
    settings = {"masks": "learned", "mask_split_noise": 0.1, "mask_lr": 1e-2}
    whole = make(NPairsLoss(), **settings)
    train(*whole, epochs=6)
    first = make(NPairsLoss(), **settings)
    train(*first, epochs=5, stop_after=stop_after)
    saved = copy.deepcopy([part.state_dict() for part in first[:3]])
    again = make(NPairsLoss(), **settings)
    for part, state in zip(again[:3], saved, strict=True):
        part.load_state_dict(state)
    dc = again[0]
    assert torch.equal(dc.partition.clusters, first[0].partition.clusters)
    assert (dc.epoch, dc.masks.k) == (5 if stop_after is None else 4, 4)
    if stop_after is None:
        train(*again, epochs=6)
        for one, other in zip(whole[:2], again[:2], strict=True):
            for name, value in one.state_dict().items():
                if name != "_extra_state":
                    assert torch.equal(value, other.state_dict()[name]), name
    else:
        assert not dc.division_due(4), "the division of the interrupted epoch was made already"


def test_the_state_holds_the_masks_once():
    names = [name for name in make()[0].state_dict() if name.endswith("weight")]
    assert names == ["objective.masks.weight"]


def test_a_state_of_other_images_is_refused():
    dc, *_ = make()
    fewer = DivideAndConquer(TripletLoss(), torch.arange(40) % 4, dim=8, batch=8)
    with pytest.raises(ValueError, match="it divides 40 training images, there are 96 now"):
        dc.load_state_dict(fewer.state_dict())


@pytest.mark.parametrize(
    "settings",
    [
        {"k_max": 6},
        {"divide_every": 0},
        {"division": "progresive"},
        {"masks": "fix"},
        {"conquer": "both"},
        {"cluster_order": "any"},
        {"cluster_steps": "even"},
        {"epoch_length": "all"},
        {"class_sampling": "class"},
        {"class_sampling": "classes"},
        {"overlap_weight": -1.0},
        {"mask_split_noise": 1.0},
        {"finetune_from": -1},
        {"batch": 10, "per_class": 4},
        {"batch": 1},
        {"k_max": 16, "masks": "fixed"},
    ],
    ids=str,
)
def test_arguments_are_refused_in_the_words_of_the_command_line(settings, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # so that our own errors are reached
    with pytest.raises(ValueError, match="must be") as ours:
        make(**settings)
    with pytest.raises(ValueError, match="must be") as command_line:
        Config.of(**{"dim": 8, "batch": 8, **settings})
    assert str(ours.value) == str(command_line.value)


def test_super_categories_must_be_given_to_divide_by_them():
    with pytest.raises(ValueError, match="division 'labels' needs super-categories"):
        make(division="labels", groups=None)
