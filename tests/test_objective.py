import torch
import torch.nn.functional as F

from divconq.losses import SoftTripletLoss
from divconq.masks import Masks
from divconq.objective import Objective


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
