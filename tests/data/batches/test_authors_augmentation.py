"""The augmentations of the paper's authors do what albumentations does."""

import os

import numpy as np
import pytest
import torch

os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # do not look for a newer version on the network

import albumentations
import cv2
from albumentations.augmentations.dropout.functional import cutout

from divconq.data.batches.augmentation import AUGMENTATIONS, Augmentation, draw
from divconq.data.batches.holes import fixed_holes
from divconq.data.batches.transforms import augment, gain_and_offset

NAMES = ("geom-authors", "geom+color-authors")
N, SIZE, SIDE = 3000, 224, 40


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def drawn(name="geom+color-authors"):
    return draw(N, AUGMENTATIONS[name], generator=seeded())


def test_the_augmentations_are_those_of_the_authors():
    geom = Augmentation(
        flip=0.5,
        rotate=0.5,
        shift=0.5,
        blur=0.5,
        cutout=0.5,
        together=True,
        fixed_holes=True,
        added_brightness=True,
    )
    color = AUGMENTATIONS["geom+color-authors"]
    assert AUGMENTATIONS["geom-authors"] == geom
    assert (color.jitter, color.strength) == (0.5, (0.2, 0.2, 0.0, 0.0))
    assert drawn("geom-authors").gain is None
    assert drawn("geom-authors").offset is None


# Holes


def test_holes_have_a_fixed_size_and_lie_inside():
    draws = drawn()
    holes = fixed_holes(draws.hole_places, draws.hole_counts, SIZE) * SIZE
    present = torch.arange(5) < draws.hole_counts[:, None]
    corners, sides = holes[..., :2], holes[..., 2:] - holes[..., :2]
    torch.testing.assert_close(holes, holes.round(), atol=1e-4, rtol=0)
    assert (sides[present].round() == SIDE).all()
    assert (sides[~present] == 0).all()
    assert corners.min() >= 0
    assert holes.max() <= SIZE + 1e-4


def test_holes_have_the_distribution_of_albumentations():
    dropout = albumentations.CoarseDropout((1, 5), (SIDE, SIDE), (SIDE, SIDE), fill=0, p=0.5)
    dropout.set_random_seed(0)
    image, counts, corners = {"shape": (SIZE, SIZE, 3)}, [], []
    for _ in range(N):
        holes = dropout.get_params_dependent_on_data(image, {})["holes"]
        counts.append(len(holes))
        corners.append(holes[:, :2])
        assert (holes[:, 2:] - holes[:, :2] == SIDE).all()
    theirs = np.concatenate(corners)
    draws = drawn()
    on = draws.hole_counts > 0
    assert on.float().mean().item() == pytest.approx(dropout.p, abs=0.03)
    shares = draws.hole_counts[on].bincount(minlength=6)[1:] / on.sum()
    np.testing.assert_allclose(shares, np.bincount(counts, minlength=6)[1:] / N, atol=0.04)
    ours = (fixed_holes(draws.hole_places, draws.hole_counts, SIZE)[on][:, 0, :2] * SIZE).round()
    assert ours.min() == theirs.min() == 0
    assert ours.max() == theirs.max() == SIZE - SIDE
    np.testing.assert_allclose(ours.mean(dim=0), theirs.mean(axis=0), atol=6)
    np.testing.assert_allclose(ours.std(dim=0), theirs.std(axis=0), atol=4)


def test_holes_are_filled_as_by_albumentations():
    draws = draw(30, Augmentation(cutout=0.7, fixed_holes=True), generator=seeded())
    images = torch.randint(1, 256, (30, SIZE, SIZE, 3), dtype=torch.uint8, generator=seeded())
    got = augment(images, torch.ones(30), draws, SIZE, SIZE)
    holes = (fixed_holes(draws.hole_places, draws.hole_counts, SIZE) * SIZE).round().int().numpy()
    for i, count in enumerate(draws.hole_counts.tolist()):
        expected = images[i].numpy()
        if count:
            expected = cutout(expected, holes[i, :count], 0, np.random.default_rng(0))
        assert np.array_equal((got[i] * 255).round().byte().permute(1, 2, 0).numpy(), expected)
    assert {0, 1, 5} <= set(draws.hole_counts.tolist())


@pytest.mark.parametrize("size", [16, 48, 96])
def test_holes_are_a_share_of_the_view(size):
    draws = draw(200, Augmentation(cutout=1, fixed_holes=True), generator=seeded())
    white = torch.full((200, size, size, 3), 255, dtype=torch.uint8)
    got = augment(white, torch.ones(200), draws, size, size)
    one = draws.hole_counts == 1
    assert one.any()
    assert ((got[one, 0] == 0).sum(dim=(1, 2)) == round(40 / 224 * size) ** 2).all()


# Rotation and shift, blur


@pytest.mark.parametrize("name", NAMES)
def test_rotation_and_shift_have_one_coin(name):
    draws = drawn(name)
    turned, moved = draws.angle != 0, (draws.shift != 0).all(dim=1)
    assert torch.equal(turned, moved)
    assert turned.float().mean().item() == pytest.approx(0.5, abs=0.03)
    apart = draw(N, AUGMENTATIONS["geom"], generator=seeded())
    assert not torch.equal(apart.angle != 0, (apart.shift != 0).all(dim=1))
    assert 44 < draws.angle.rad2deg().max() <= 45
    assert 0.061 < draws.shift.max() <= 1 / 16


@pytest.mark.parametrize("box", [3, 5, 7])
def test_blur_equals_opencv_away_from_the_border(box):
    image = torch.randint(0, 256, (1, 32, 32, 3), dtype=torch.uint8, generator=seeded())
    draws = draw(1, Augmentation(blur=1), generator=seeded())
    draws.blur[:] = box
    got = augment(image, torch.ones(1), draws, 32, 32)[0].permute(1, 2, 0).numpy() * 255
    theirs = albumentations.Blur((box, box), p=1)(image=image[0].numpy())["image"]
    inner = slice(3, -3)
    assert np.abs(got - theirs)[inner, inner].max() <= 0.5 + 1e-3, "theirs is rounded"
    exact = cv2.blur(image[0].numpy().astype(np.float32), (box, box))
    np.testing.assert_allclose(got[inner, inner], exact[inner, inner], atol=1e-3)


# Brightness and contrast


@pytest.mark.parametrize(("contrast", "brightness"), [(0.2, 0.2), (-0.2, 0.13), (0.15, -0.2), (0.0, 0.0)])
def test_brightness_and_contrast_equal_albumentations(contrast, brightness):
    image = torch.randint(0, 256, (24, 24, 3), dtype=torch.uint8, generator=seeded())
    change = albumentations.RandomBrightnessContrast(
        (brightness, brightness), (contrast, contrast), brightness_by_max=True, p=1
    )
    expected = change(image=image.numpy())["image"]
    x = image.permute(2, 0, 1)[None].float() / 255
    got = gain_and_offset(x, torch.tensor([1 + contrast]), torch.tensor([brightness]))[0].permute(1, 2, 0)
    assert np.abs(got.numpy() * 255 - expected).max() <= 1, "theirs is cut to whole numbers"
    exact = change(image=image.numpy().astype(np.float32) / 255)["image"]
    np.testing.assert_allclose(got.numpy(), exact, atol=1e-6)


def test_augment_adds_the_brightness():
    images = torch.randint(0, 256, (40, 16, 16, 3), dtype=torch.uint8, generator=seeded())
    changes = Augmentation(jitter=0.5, strength=(0.2, 0.2, 0.0, 0.0), added_brightness=True)
    draws = draw(40, changes, generator=seeded())
    got = augment(images, torch.ones(40), draws, 16, 16)
    for i in range(40):
        expected = (draws.gain[i] * images[i].float() / 255 + draws.offset[i]).clamp(0, 1)
        torch.testing.assert_close(got[i].permute(1, 2, 0), expected, atol=1e-6, rtol=0)


def test_ranges_of_brightness_and_contrast():
    draws = drawn()
    on = draws.offset != 0
    assert torch.equal(on, draws.gain != 1)
    assert on.float().mean().item() == pytest.approx(0.5, abs=0.03)
    for values in (draws.offset[on], draws.gain[on] - 1):
        assert -0.2 <= values.min() < -0.195
        assert 0.195 < values.max() <= 0.2 + 1e-6
    assert np.corrcoef(draws.offset[on], draws.gain[on])[0, 1] == pytest.approx(0, abs=0.06)
    one = draw(
        8, Augmentation(jitter=1, strength=(0.2, 0.0, 0.0, 0.0), added_brightness=True), generator=seeded()
    )
    assert (one.gain == 1).all()
    assert (one.offset != 0).any()
