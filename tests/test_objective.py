import pytest
import torch
import torch.nn.functional as F

from divconq.losses import ProxyAnchorLoss, SoftTripletLoss
from divconq.masks import Masks
from divconq.objective import Objective
from losses.slow_losses import slow_proxy_anchor


def split_masks(kind="learned"):
    masks = Masks(6, 4, kind)
    masks.split_()
    if kind == "learned":
        torch.nn.init.uniform_(masks.weight, -0.2, 1.0)
    return masks


def test_it_is_mask_normalise_loss_plus_overlap():
    torch.manual_seed(0)
    f, labels, loss = torch.randn(8, 6), torch.arange(8) % 3, SoftTripletLoss()
    masks = split_masks()
    value = Objective(loss, masks, overlap_weight=0.3)(f, labels, cluster=1)
    by_hand = loss(F.normalize(f * masks.weight[1].relu()), labels) + 0.3 * masks.overlap()
    assert torch.equal(value, by_hand)


def test_only_the_chosen_mask_and_the_overlap_move_the_masks():
    f, labels, masks = torch.randn(8, 6), torch.arange(8) % 3, split_masks()
    Objective(SoftTripletLoss(), masks, overlap_weight=0.0)(f, labels, cluster=1).backward()
    assert masks.weight.grad[1].any()
    assert not masks.weight.grad[[0, 2, 3]].any()


def test_in_the_conquered_space_the_masks_stand_still():
    f, labels, masks = torch.randn(8, 6, requires_grad=True), torch.arange(8) % 3, split_masks()
    value = Objective(SoftTripletLoss(), masks, overlap_weight=5.0)(f, labels, cluster=None)
    by_hand = SoftTripletLoss()(F.normalize(f * masks.weight[:2].relu().sum(0)), labels)
    assert torch.allclose(value, by_hand)
    value.backward()
    assert masks.weight.grad is None
    assert f.grad.any()


def test_without_masks_it_is_the_loss_itself():
    f, labels = torch.randn(8, 6), torch.arange(8) % 3
    value = Objective(SoftTripletLoss(), split_masks("none"))(f, labels, cluster=1)
    assert torch.equal(value, SoftTripletLoss()(F.normalize(f), labels))


def gradients(value, *leaves):
    return [value.detach(), *torch.autograd.grad(value, leaves)]


@pytest.mark.parametrize("kind", ["learned", "fixed"])
@pytest.mark.parametrize("cluster", [1, torch.tensor(1), None], ids=["number", "tensor", "conquered"])
def test_proxies_are_compared_in_the_subspace_of_the_batch(kind, cluster):
    torch.manual_seed(0)
    f, labels, masks = (
        torch.randn(8, 6).double().requires_grad_(),
        torch.arange(8) % 3,
        split_masks(kind).double(),
    )
    loss = ProxyAnchorLoss(4, 6).double()
    mask = masks.weight[:2].relu().sum(0) if cluster is None else masks.weight[1].relu()
    leaves = [f, loss.proxies, *(masks.parameters() if cluster is not None else ())]
    got = gradients(Objective(loss, masks, overlap_weight=0.0)(f, labels, cluster), *leaves)
    slow = slow_proxy_anchor(F.normalize(f * mask), labels, loss.proxies, mask=mask)
    for one, other in zip(got, gradients(slow, *leaves), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)
    if kind == "fixed" and cluster is not None:
        assert not got[2][:, :3].any(), "the other block of the proxies keeps its values"
        assert got[2][:, 3:].any()


@pytest.mark.parametrize("kind", ["none", "learned", "fixed"])
@pytest.mark.parametrize("cluster", [0, torch.tensor(0), None], ids=["number", "tensor", "conquered"])
def test_with_one_cluster_or_no_masks_proxies_are_compared_as_they_are(kind, cluster):
    torch.manual_seed(0)
    f, labels, loss = torch.randn(8, 6), torch.arange(8) % 3, ProxyAnchorLoss(4, 6)
    value = Objective(loss, Masks(6, 4, kind))(f, labels, cluster)
    assert torch.equal(value, loss(F.normalize(f), labels))


def test_without_masks_proxies_are_compared_as_they_are_in_every_cluster():
    torch.manual_seed(0)
    f, labels, loss = torch.randn(8, 6), torch.arange(8) % 3, ProxyAnchorLoss(4, 6)
    value = Objective(loss, split_masks("none"))(f, labels, cluster=1)
    assert torch.equal(value, loss(F.normalize(f), labels))


def test_a_loss_of_your_own_receives_the_mask_if_it_asks_for_it():
    class Mine(torch.nn.Module):
        takes_mask = True

        def forward(self, z, labels, *, mask=None):
            self.seen = mask.tolist()
            return z.sum()

    objective, f = Objective(Mine(), split_masks("fixed")), torch.randn(8, 6)
    for cluster, mask in ((torch.tensor(1), [0, 0, 0, 1, 1, 1]), (None, [1] * 6)):
        objective(f, torch.arange(8), cluster)
        assert objective.loss.seen == mask


def test_the_loss_is_taken_in_full_precision_under_autocast():
    seen = []

    def loss(z, labels):
        seen.append((z.dtype, (z @ z.T).dtype))
        return z.sum()

    with torch.autocast("cpu", torch.bfloat16):
        f = torch.nn.Linear(6, 6)(torch.randn(4, 6))
        assert f.dtype == torch.bfloat16
        Objective(loss, split_masks())(f, torch.arange(4), cluster=0)
    assert seen == [(torch.float32, torch.float32)]
