import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as TF
from scipy import ndimage, stats
from torchvision.transforms import RandomResizedCrop

from divconq.data.batches.antialiased_crop import crop_and_flip
from divconq.data.batches.augmentation import AUGMENTATIONS, Augmentation, draw, make_augmentation
from divconq.data.batches.transforms import _box, augment, augment_antialiased
from divconq.data.batches.views import true_size

ALL = Augmentation(
    flip=0.5, rotate=0.5, shift=0.5, blur=0.5, cutout=0.5, jitter=0.5, strength=(0.4, 0.4, 0.4, 0.1), grey=0.5
)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def noise(n, side):
    return torch.randint(0, 256, (n, side, side, 3), dtype=torch.uint8, generator=seeded())


def as_float(images):
    return images.permute(0, 3, 1, 2).float()


def column(*values):
    return torch.tensor(values, dtype=torch.float32)


# The crop


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("size", [7, 20, 32])
@pytest.mark.parametrize(
    ("left", "top", "width", "height"),
    [(0, 0, 40, 40), (3, 5, 30, 22), (0, 17, 11, 23), (31, 0, 9, 40), (12, 13, 1, 2), (4, 4, 32, 20)],
)
def test_crop_equals_torchvision(left, top, width, height, size, flip):
    images = noise(2, 40)
    boxes = [column(value, value) for value in (left, top, width, height)]
    got = crop_and_flip(images, *boxes, torch.tensor([flip, flip]), size)
    expected = TF.resized_crop(as_float(images), top, left, height, width, [size, size], antialias=True)
    torch.testing.assert_close(got, TF.hflip(expected) if flip else expected, atol=1e-3, rtol=0)


def test_whole_augmentation_equals_torchvision():
    """Images are decoded at 96, which is their stored side; 24 pixels at ``resize`` = 32 are 72 of them."""
    n, images = 12, noise(12, 96)
    draws = draw(n, AUGMENTATIONS["standard"], generator=seeded())
    got = augment_antialiased(images, torch.ones(n), draws, 24, 32)
    for i in range(n):
        left, top = (3 * int(p * 9) for p in draws.place[i].tolist())
        expected = TF.resized_crop(as_float(images)[i] / 255, top, left, 72, 72, [24, 24], antialias=True)
        expected = TF.hflip(expected) if draws.flip[i] else expected
        torch.testing.assert_close(got[i], expected, atol=1e-5, rtol=0)


def slow_weights(start, length, size, side):
    """Return for each output pixel its weight of each stored pixel, one by one."""
    rows = []
    for i in range(size):
        scale = length / size
        centre, reach = start + (i + 0.5) * scale, max(scale, 1)
        row = []
        for pixel in range(side):
            inside = max(0.0, min(pixel + 1, start + length) - max(pixel, start))
            row.append(max(0.0, 1 - abs(pixel + 0.5 - centre) / reach) * inside)
        rows.append(np.array(row) / sum(row))
    return np.stack(rows)


def slow_box(draws, i, width, height, size):
    if draws.area is None:
        px, py = draws.place[i].tolist()
        return math.floor(px * (width - size + 1)), math.floor(py * (height - size + 1)), size, size
    for share, ratio in zip(draws.area[i].tolist(), draws.ratio[i].tolist(), strict=True):
        w, h = math.sqrt(share * width * height * ratio), math.sqrt(share * width * height / ratio)
        if w <= width and h <= height:
            px, py = draws.place[i].tolist()
            return px * (width - w), py * (height - h), w, h
    w, h = min(width, height * 4 / 3), min(height, width * 4 / 3)
    return (width - w) / 2, (height - h) / 2, w, h


@pytest.mark.parametrize("crop", ["random", "random_resized"])
def test_crop_equals_plain_loops_on_images_of_any_shape(crop):
    n, side, size, resize = 10, 37, 9, 12
    images, aspect = noise(n, side), torch.linspace(0.3, 3, n)
    draws = draw(n, Augmentation(flip=0.5, crop=crop), generator=seeded())
    got = augment_antialiased(images, aspect, draws, size, resize)
    for i, (width, height) in enumerate(
        zip(*map(torch.Tensor.tolist, true_size(aspect, resize)), strict=True)
    ):
        left, top, w, h = slow_box(draws, i, width, height, size)
        across = slow_weights(left * side / width, w * side / width, size, side)
        down = slow_weights(top * side / height, h * side / height, size, side)
        across = across[::-1] if draws.flip[i] else across
        expected = np.einsum("vy,yxc,ux->cvu", down, images[i].numpy() / 255, across)
        np.testing.assert_allclose(got[i].numpy(), expected, atol=2e-4)


def test_a_box_below_one_pixel_is_no_division_by_zero():
    images = noise(3, 8)
    left, width = column(2.3, 6.95, 0.0), column(0.1, 0.2, 1e-3)
    got = crop_and_flip(images, left, left, width, width, torch.zeros(3, dtype=torch.bool), 4)
    assert got.isfinite().all()
    assert torch.allclose(got[0], as_float(images)[0, :, 2, 2][:, None, None].expand(3, 4, 4), atol=1e-3)


def test_boxes_have_the_distribution_of_torchvision():
    n, width, height = 4000, 400, 300
    draws = draw(n, make_augmentation("standard", "random_resized"), generator=seeded())
    sizes = torch.full((n,), float(width)), torch.full((n,), float(height))
    left, top, w, h = (value.numpy() for value in _box(draws, *sizes, 224))
    torch.manual_seed(0)
    image = torch.zeros(3, height, width)
    drawn = [RandomResizedCrop.get_params(image, (0.08, 1.0), (3 / 4, 4 / 3)) for _ in range(n)]
    their_top, their_left, their_h, their_w = np.array(drawn, dtype=float).T
    pairs = [
        (w * h, their_w * their_h),
        (w / h, their_w / their_h),
        (left + w / 2, their_left + their_w / 2),
        (top + h / 2, their_top + their_h / 2),
    ]
    for ours, theirs in pairs:
        assert stats.ks_2samp(ours, theirs).statistic < 0.04
    assert 0.08 * 0.999 <= (w * h / width / height).min() < 0.09
    assert (w * h / width / height).max() > 0.95
    assert 3 / 4 - 1e-4 <= (w / h).min() < 0.76
    assert 1.32 < (w / h).max() <= 4 / 3 + 1e-4


def test_fine_stripes_become_grey():
    """Stripes of one pixel alias if four pixels are read for one that covers sixteen."""
    stripes = (torch.arange(128) % 2 * 255).to(torch.uint8)[None, None, :, None].expand(1, 128, 128, 3)
    draws = replace(draw(1, AUGMENTATIONS["none"], generator=seeded()), place=column(0.4, 0.4)[None])
    smooth = augment_antialiased(stripes, torch.ones(1), draws, 27, 31)
    rough = augment(stripes, torch.ones(1), draws, 27, 31)
    assert smooth.std() < 0.05 < 0.2 < rough.std()


# The changes after the crop


def test_rotation_and_shift_move_the_crop():
    """As SciPy does, which reflects at the same border."""
    n, size = 8, 24
    images, aspect = noise(n, 60), torch.linspace(0.6, 1.6, n)
    changes = Augmentation(flip=0.5, rotate=1, shift=1, crop="random_resized")
    draws = draw(n, changes, generator=seeded())
    draws.angle[:3], draws.shift[2:5] = 0, 0
    cropped = augment_antialiased(images, aspect, replace(draws, angle=None, shift=None), size, 32)
    got = augment_antialiased(images, aspect, draws, size, 32)
    middle = np.full(2, (size - 1) / 2)
    for i in range(n):
        cos, sin = math.cos(draws.angle[i]), math.sin(draws.angle[i])
        back = np.array([[cos, sin], [-sin, cos]])  # rows first
        moved = draws.shift[i].flip(0).numpy() * size
        offset = middle - back @ (middle + moved)
        for channel in range(3):
            expected = ndimage.affine_transform(
                cropped[i, channel].double().numpy(), back, offset, order=1, mode="reflect"
            )
            np.testing.assert_allclose(got[i, channel].numpy(), expected, atol=2e-4)


def test_an_image_that_is_not_moved_is_its_crop():
    n = 6
    images, aspect = noise(n, 60), torch.linspace(0.6, 1.6, n)
    draws = draw(n, Augmentation(flip=0.5, rotate=0.5, shift=0.5, together=True), generator=seeded())
    still = (draws.angle == 0).nonzero().flatten()
    assert 0 < len(still) < n
    cropped = augment_antialiased(images, aspect, replace(draws, angle=None, shift=None), 24, 32)
    assert torch.equal(augment_antialiased(images, aspect, draws, 24, 32)[still], cropped[still])


def test_blur_reads_the_reflected_crop():
    images = noise(1, 40)
    draws = draw(1, Augmentation(), generator=seeded())
    x = augment_antialiased(images, torch.ones(1), draws, 24, 32)[0].double().numpy()
    got = augment_antialiased(images, torch.ones(1), replace(draws, blur=torch.tensor([5])), 24, 32)[
        0
    ].numpy()
    for channel in range(3):
        expected = ndimage.uniform_filter(x[channel], 5, mode="reflect")
        np.testing.assert_allclose(got[channel], expected, atol=1e-5)


@pytest.mark.parametrize("crop", ["random", "random_resized"])
def test_an_image_does_not_depend_on_its_batch(crop):
    images, aspect = noise(20, 40), torch.linspace(0.5, 2, 20)
    draws = draw(20, replace(ALL, crop=crop), generator=seeded())
    whole = augment_antialiased(images, aspect, draws, 24, 32)
    for i in (0, 7, 15, 16, 19):
        some = slice(i, i + 1)
        alone = augment_antialiased(images[some], aspect[some], draws.part(some), 24, 32)
        torch.testing.assert_close(alone, whole[some], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_results_stay_in_range(name):
    images = noise(8, 40)
    images[::2] = 255
    draws = draw(8, make_augmentation(name, "random_resized"), generator=seeded())
    got = augment_antialiased(images, torch.linspace(0.3, 3, 8), draws, 24, 32)
    assert got.shape == (8, 3, 24, 24)
    assert got.dtype == torch.float32
    assert got.min() >= 0
    assert got.max() <= 1


@pytest.mark.parametrize("crop", ["random", "random_resized"])
@pytest.mark.parametrize("name", ["standard", "geom+color-authors", "color-heavy"])
def test_antialiased_crop_does_not_synchronise_with_device(name, crop):
    """The meta device has no values: code that reads one, or whose shape depends on one, fails."""
    images, aspect = noise(3, 40).to("meta"), torch.ones(3, device="meta")
    draws = draw(3, make_augmentation(name, crop), generator=seeded()).to("meta")
    assert all(getattr(draws, f.name) is None or getattr(draws, f.name).is_meta for f in fields(draws))
    assert augment_antialiased(images, aspect, draws, 24, 32).shape == (3, 3, 24, 24)


@pytest.mark.gpu
@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_cuda_equals_cpu(name):
    images, aspect = noise(8, 80), torch.linspace(0.5, 2, 8)
    draws = draw(8, make_augmentation(name, "random_resized"), generator=seeded())
    here = augment_antialiased(images, aspect, draws, 48, 56)
    there = [images.cuda(), aspect.cuda(), draws.to("cuda"), 48, 56]
    plain = augment_antialiased(*there)
    compiled = torch.compile(augment_antialiased, dynamic=False)(*there)
    assert plain.dtype == compiled.dtype == torch.float16
    assert (here - plain.cpu()).abs().mean() < 2**-10
    assert (here - compiled.cpu()).abs().mean() < 2**-10
