import pytest
import torch
import torch.nn.functional as F

from divconq.masks import Masks


def slow_overlap(masks):
    """Return the mean cosine over all ordered pairs, one pair at a time."""
    rows = [row.relu() for row in masks.weight[: masks.k]]
    cosines = [
        a @ b / (a.norm() * b.norm()) for i, a in enumerate(rows) for j, b in enumerate(rows) if i != j
    ]
    return sum(cosines) / len(cosines)


@pytest.mark.parametrize(("dim", "k_max"), [(8, 4), (512, 32), (7, 4), (5, 4), (64, 64), (100, 8)])
def test_fixed_masks_stay_orthogonal_and_sum_to_ones(dim, k_max):
    masks = Masks(dim, k_max, "fixed")
    while masks.k < k_max:
        before = masks.active()
        masks.split_()
        now = masks.active()
        gram = now @ now.T
        assert torch.equal(gram, gram.diagonal().diag())
        assert gram.diagonal().min() >= 1
        assert torch.equal(now.sum(0), torch.ones(dim))
        assert torch.equal(now[0::2] + now[1::2], before), "children share out their parent's block"
        assert torch.equal(masks.conquer(), torch.ones(dim))


def test_fixed_blocks_equal_the_paper():
    masks = Masks(8, 4, "fixed")
    masks.split_()
    masks.split_()
    assert torch.equal(masks.active(), torch.eye(4).repeat_interleave(2, dim=1))


def test_learned_split_copies_the_parent():
    masks = Masks(16, 8)
    f = torch.randn(5, 16)
    for _ in range(3):
        torch.nn.init.normal_(masks.weight[: masks.k])
        parents = [F.normalize(masks.select(f, c)) for c in range(masks.k)]
        masks.split_()
        for child in range(masks.k):
            assert torch.equal(F.normalize(masks.select(f, child)), parents[child // 2])
    assert masks.k == 8


def test_overlap_equals_its_definition_in_value_and_gradient():
    masks = Masks(12, 8).double()
    masks.split_()
    masks.split_()
    torch.nn.init.normal_(masks.weight)
    fast, slow = masks.overlap(), slow_overlap(masks)
    assert torch.allclose(fast, slow, atol=1e-12)
    (a,), (b,) = torch.autograd.grad(fast, masks.weight), torch.autograd.grad(slow, masks.weight)
    assert torch.allclose(a, b, atol=1e-12)
    assert not a[4:].any(), "rows that are not in use get no gradient"


def test_overlap_is_zero_for_one_mask_and_untrained_masks():
    assert Masks(4, 4).overlap() == 0
    for kind in ("fixed", "none"):
        masks = Masks(4, 4, kind)
        masks.split_()
        assert masks.overlap() == 0
        assert not list(masks.parameters())


def test_overlap_is_finite_for_a_mask_of_zeros():
    masks = Masks(4, 2)
    masks.split_()
    with torch.no_grad():
        masks.weight[1] = -1
    masks.overlap().backward()
    assert masks.weight.grad.isfinite().all()


def test_overlap_has_a_gradient_only_with_noise():
    moved = {}
    for noise in (0.0, 0.1):
        masks = Masks(64, 2)
        masks.split_(noise, seed=3)
        masks.overlap().backward()
        moved[noise] = masks.weight.grad.abs().max().item()
        first, second = masks.active().detach()
        assert torch.allclose(first + second, torch.full((64,), 2.0)), "their sum stays what it was"
        assert torch.allclose((first - second).abs(), torch.full((64,), 2 * noise))
    assert moved[0.0] < 1e-7 < 1e-4 < moved[0.1]


def test_noise_depends_on_seed_and_applies_to_learned_masks_only():
    def split(kind, seed):
        masks = Masks(32, 4, kind)
        masks.split_(0.2, seed=seed)
        masks.split_(0.2, seed=seed)
        return masks.active().detach()

    assert torch.equal(split("learned", 0), split("learned", 0))
    assert not torch.equal(split("learned", 0), split("learned", 1))
    apart = split("learned", 0)
    assert not torch.equal(apart[0] - apart[1], apart[2] - apart[3])
    assert not torch.equal((apart[0] > apart[1]), (apart[:2].sum(0) > apart[2:].sum(0))), "drawn anew"
    plain = Masks(32, 4, "fixed")
    plain.split_()
    plain.split_()
    assert torch.equal(split("fixed", 0), plain.active())


def test_conquer_sums_the_rectified_masks_in_use():
    masks = Masks(3, 4)
    masks.split_()
    with torch.no_grad():
        masks.weight.copy_(torch.tensor([[1.0, -1, 2], [3, 4, -5], [9, 9, 9], [9, 9, 9]]))
    assert masks.conquer().tolist() == [4, 4, 2]
    assert Masks(3, 4, conquer="plain").conquer().tolist() == [1, 1, 1]


def test_select_takes_a_number_or_a_tensor():
    masks = Masks(4, 2, "fixed")
    masks.split_()
    f = torch.randn(3, 4)
    assert torch.equal(masks.select(f, 1), masks.select(f, torch.tensor(1)))
    assert torch.equal(masks.select(f, 1)[:, :2], torch.zeros(3, 2))


def test_negative_weights_select_nothing():
    masks, f = Masks(3, 2), torch.randn(5, 3)
    masks.split_()
    with torch.no_grad():
        masks.weight.copy_(torch.tensor([[1.0, 1, 1], [-2, 0.5, -1]]))
    expected = f * torch.tensor([0, 0.5, 0])
    assert torch.equal(masks.select(f, 1), expected)
    assert torch.equal(masks.select(f, torch.tensor(1)), expected)


def test_state_dict_holds_the_count():
    masks = Masks(4, 4)
    masks.split_()
    other = Masks(4, 4)
    other.load_state_dict(masks.state_dict())
    assert other.k == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": 8, "k_max": 6}, "k_max must be a power of two, got 6; use 4 or 8"),
        ({"dim": 3, "k_max": 4, "kind": "fixed"}, "dim must be at least k_max = 4, got 3"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        Masks(**arguments)


def test_no_more_splits_than_k_max():
    masks = Masks(4, 1)
    with pytest.raises(ValueError, match="all 1 masks are in use"):
        masks.split_()
