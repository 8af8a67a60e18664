import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision.transforms.functional as TF

from divconq.data.batches import transforms
from divconq.data.batches.augmentation import AUGMENTATIONS, Augmentation, Draws, draw, make_augmentation
from divconq.data.batches.transforms import augment


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def noise(n, side, seed=0):
    return torch.randint(0, 256, (n, side, side, 3), dtype=torch.uint8, generator=seeded(seed))


def smooth(side):
    """Return a few waves, which all interpolations reproduce up to rounding."""
    t = torch.linspace(0, 1, side)
    waves = [torch.sin(a * t[:, None] + b * t[None, :] + c) for a, b, c in ((5, 3, 0), (2, 7, 1), (6, 6, 2))]
    return ((torch.stack(waves, dim=-1) * 0.5 + 0.5) * 255).round().to(torch.uint8)[None]


def still(n=1, **changes):
    """Return draws for a central crop without augmentation, except for ``changes``."""
    nothing = draw(n, AUGMENTATIONS["none"], generator=seeded())
    return replace(nothing, **{name: torch.as_tensor(value) for name, value in changes.items()})


def as_float(images):
    return images.permute(0, 3, 1, 2).float() / 255


# Crops


@pytest.mark.parametrize("side", [64, 50])
@pytest.mark.parametrize("flip", [False, True])
def test_random_crop_is_a_slice(side, flip):
    images, n, size = noise(40, side), 40, 37
    draws = draw(n, Augmentation(flip=float(flip)), generator=seeded())
    got, x = augment(images, torch.ones(n), draws, size, side), as_float(images)
    for i in range(n):
        left, top = (int(p * (side - size + 1)) for p in draws.place[i].tolist())
        expected = x[i, :, top : top + size, left : left + size]
        assert torch.equal(got[i], TF.hflip(expected) if flip else expected)


def test_random_crop_draws_exactly_the_valid_offsets():
    ramp = torch.arange(12, dtype=torch.uint8).expand(12, 12)  # value = column
    images = torch.stack([ramp, ramp.T, ramp], dim=2).expand(2000, -1, -1, -1)
    got = augment(images, torch.ones(2000), draw(2000, Augmentation(), generator=seeded()), 8, 12)
    for channel in (0, 1):
        counts = (got[:, channel, 0, 0] * 255).round().long().bincount(minlength=5)
        assert counts.shape == (5,)
        assert (counts / 2000 - 0.2).abs().max() < 0.04


def test_none_is_the_central_crop():
    images = noise(2, 32)
    for crop in ("random", "random_resized"):
        draws = draw(2, make_augmentation("none", crop), generator=seeded())
        got = augment(images, torch.ones(2), draws, 20, 32)
        assert torch.equal(got, as_float(images)[:, :, 6:26, 6:26])


@pytest.mark.parametrize("aspect", [0.5, 1.5])
def test_crop_uses_original_aspect(aspect):
    images = noise(2, 64)
    wide, tall = int(64 * max(1, aspect)), int(64 * max(1, 1 / aspect))
    whole = F.interpolate(as_float(images), (tall, wide), mode="bilinear", align_corners=False)
    left, top = (wide - 48) // 2, (tall - 48) // 2
    got = augment(images, torch.full((2,), aspect), still(2), 48, 64)
    torch.testing.assert_close(got, whole[:, :, top : top + 48, left : left + 48], atol=1e-4, rtol=0)


def first_that_fits(area, ratio, width, height):
    """Return the size of a random_resized crop, and whether it must be central."""
    for share, r in zip(area, ratio, strict=True):
        w, h = math.sqrt(share * width * height * r), math.sqrt(share * width * height / r)
        if w <= width and h <= height:
            return w, h, False
    if width / height < 3 / 4:
        return width, width / (3 / 4), True
    if width / height > 4 / 3:
        return height * 4 / 3, height, True
    return width, height, True


@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.9, 1.0)])
def test_random_resized_box(scale):
    n, size, resize = 300, 24, 32
    draws = draw(n, Augmentation(crop="random_resized", crop_scale=scale), generator=seeded())
    assert draws.area.shape == draws.ratio.shape == (n, 10)
    assert draws.area.min() >= scale[0]
    assert draws.area.max() <= scale[1]
    assert 3 / 4 <= draws.ratio.min() < 0.8
    assert 1.25 < draws.ratio.max() <= 4 / 3 + 1e-6
    aspect = torch.linspace(0.2, 5, n)
    width, height = (resize * aspect.clamp(min=1)).floor(), (resize / aspect.clamp(max=1)).floor()
    left, top, w, h = transforms._box(draws, width, height, size)
    central = 0
    for i in range(n):
        expected = first_that_fits(
            draws.area[i].tolist(), draws.ratio[i].tolist(), width[i].item(), height[i].item()
        )
        assert (w[i].item(), h[i].item()) == pytest.approx(expected[:2], rel=1e-5)
        place = (0.5, 0.5) if expected[2] else draws.place[i].tolist()
        assert left[i].item() == pytest.approx(place[0] * (width[i] - w[i]).item(), abs=1e-3)
        assert top[i].item() == pytest.approx(place[1] * (height[i] - h[i]).item(), abs=1e-3)
        central += expected[2]
    assert 0 < central < n


def slow_warp(image, aspect, draws, i, size, resize):
    """Warp one image pixel by pixel, and undo the changes from the last to the first."""
    side = image.shape[0]
    width, height = int(resize * max(1, aspect) + 1e-3), int(resize * max(1, 1 / aspect) + 1e-3)
    if draws.area is None:
        w = h = size
        left, top = (
            math.floor(p * (room - size + 1))
            for p, room in zip(draws.place[i].tolist(), (width, height), strict=True)
        )
    else:
        w, h, central = first_that_fits(draws.area[i].tolist(), draws.ratio[i].tolist(), width, height)
        px, py = (0.5, 0.5) if central else draws.place[i].tolist()
        left, top = px * (width - w), py * (height - h)
    angle = 0.0 if draws.angle is None else draws.angle[i].item()
    shift = (0.0, 0.0) if draws.shift is None else draws.shift[i].tolist()

    def at(column, row):
        def fold(p):
            while not 0 <= p <= side:
                p = -p if p < 0 else 2 * side - p
            return min(max(p - 0.5, 0), side - 1)

        x, y = fold(column), fold(row)
        x0, y0 = int(x), int(y)
        x1, y1 = min(x0 + 1, side - 1), min(y0 + 1, side - 1)
        upper = image[y0, x0] * (1 - (x - x0)) + image[y0, x1] * (x - x0)
        lower = image[y1, x0] * (1 - (x - x0)) + image[y1, x1] * (x - x0)
        return upper * (1 - (y - y0)) + lower * (y - y0)

    out = torch.zeros(3, size, size)
    for row in range(size):
        for column in range(size):
            x, y = column + 0.5, row + 0.5
            x, y = x - shift[0] * size, y - shift[1] * size
            x, y = x - size / 2, y - size / 2
            x, y = (
                math.cos(angle) * x - math.sin(angle) * y + size / 2,
                math.sin(angle) * x + math.cos(angle) * y + size / 2,
            )
            x = size - x if draws.flip[i] else x
            x, y = left + x * w / size, top + y * h / size
            out[:, row, column] = at(x * side / width, y * side / height)
    return out


@pytest.mark.parametrize("crop", ["random", "random_resized"])
def test_warp_against_plain_loops(crop):
    n, side, size, resize = 8, 13, 9, 11
    images, aspect = noise(n, side), torch.linspace(0.4, 2.5, n)
    draws = draw(n, Augmentation(flip=0.5, rotate=0.9, shift=0.9, crop=crop), generator=seeded())
    got = augment(images, aspect, draws, size, resize)
    for i in range(n):
        expected = slow_warp(images[i].float() / 255, aspect[i].item(), draws, i, size, resize)
        torch.testing.assert_close(got[i], expected, atol=2e-4, rtol=0)


def test_rotation_equals_torchvision():
    images = smooth(64)
    for degrees in (-45.0, 20.0, 45.0):
        got = augment(images, torch.ones(1), still(angle=[math.radians(degrees)]), 64, 64)
        expected = TF.rotate(as_float(images), degrees, interpolation=TF.InterpolationMode.BILINEAR)
        torch.testing.assert_close(got[..., 16:48, 16:48], expected[..., 16:48, 16:48], atol=1e-3, rtol=0)


def test_shift_equals_torchvision():
    images = noise(1, 32)
    got = augment(images, torch.ones(1), still(shift=[[3 / 32, -2 / 32]]), 32, 32)
    expected = TF.affine(as_float(images), angle=0.0, translate=[3, -2], scale=1.0, shear=[0.0])
    torch.testing.assert_close(got[..., :-2, 3:], expected[..., :-2, 3:], atol=1e-5, rtol=0)


def test_border_is_reflected():
    images = noise(1, 16)
    got = augment(images, torch.ones(1), still(shift=[[4 / 16, 0.0]]), 16, 16)
    torch.testing.assert_close(got[..., :4], as_float(images)[..., :4].flip(-1), atol=1e-6, rtol=0)


# Blur, holes, colours


@pytest.mark.parametrize("exact", [False, True])
def test_sample_and_gather_agree(exact):
    images = noise(3, 20)
    points = 0.5 + 19 * torch.rand(3, 9, 11, 2, generator=seeded())
    points[0, 0, :4] = torch.tensor([[0.5, 0.5], [19.5, 19.5], [0.5, 19.5], [7.5, 3.5]])
    expected = transforms._sample(images, points, exact=exact)
    got = transforms._gather(images, points)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
    assert torch.equal(got[0, :, 0, 3], images[0, 3, 7] / 255)


def test_box_blur_is_the_mean_of_a_box():
    images = noise(4, 16)
    got = augment(images, torch.ones(4), still(4, blur=[1, 3, 5, 7]), 16, 16)
    x = as_float(images)
    assert torch.equal(got[0], x[0])
    for i, box in enumerate((3, 5, 7), start=1):
        reach = (box // 2, box // 2)
        padded = torch.from_numpy(np.pad(x[i : i + 1].numpy(), ((0, 0), (0, 0), reach, reach), "symmetric"))
        torch.testing.assert_close(got[i : i + 1], F.avg_pool2d(padded, box, stride=1), atol=1e-6, rtol=0)


def test_box_blur_reads_pixels_outside_the_crop():
    images = noise(1, 16)
    whole = augment(images, torch.ones(1), still(1, blur=[7]), 16, 16)
    assert torch.equal(augment(images, torch.ones(1), still(1, blur=[7]), 8, 16), whole[:, :, 4:12, 4:12])


@pytest.mark.parametrize("size", [224, 56])
def test_holes(size):
    n = 12
    draws = draw(n, Augmentation(cutout=0.5), generator=seeded())
    white = torch.full((n, size, size, 3), 255, dtype=torch.uint8)
    got = augment(white, torch.ones(n), draws, size, size)
    for i in range(n):
        expected = torch.ones(size, size)
        for left, top, right, bottom in (draws.holes[i] * size).tolist():
            rows = [p for p in range(size) if top <= p + 0.5 < bottom]
            columns = [p for p in range(size) if left <= p + 0.5 < right]
            assert max(len(rows), len(columns)) <= 40 * size / 224
            for row in rows:
                for column in columns:
                    expected[row, column] = 0
        assert torch.equal(got[i], expected.expand(3, -1, -1))


def test_numbers_of_holes():
    holes = draw(4000, Augmentation(cutout=0.5), generator=seeded()).holes
    side = holes[..., 2:] - holes[..., :2]
    assert holes.min() >= 0
    assert holes.max() <= 1 + 1e-6
    assert 39 / 224 < side.max() <= 40 / 224 + 1e-6
    shares = (side > 0).all(dim=2).sum(dim=1).bincount() / 4000
    torch.testing.assert_close(shares, torch.tensor([0.5, 0.1, 0.1, 0.1, 0.1, 0.1]), atol=0.03, rtol=0)


@pytest.mark.parametrize(
    ("name", "factors", "reference"),
    [
        ("brightness", [0.6, 1.0, 1.4], TF.adjust_brightness),
        ("contrast", [0.6, 1.0, 1.4], TF.adjust_contrast),
        ("saturation", [0.6, 1.0, 1.4], TF.adjust_saturation),
        ("hue", [-0.1, 0.0, 0.1], TF.adjust_hue),
    ],
)
def test_colours_equal_torchvision(name, factors, reference):
    images = noise(3, 16)
    images[:, :4] = images[:, :4, :, :1]  # some pixels without colour
    images[:, 4:6] = 0
    got = augment(images, torch.ones(3), still(3, **{name: factors}), 16, 16)
    for i, factor in enumerate(factors):
        torch.testing.assert_close(got[i], reference(as_float(images)[i], factor), atol=1e-5, rtol=0)


def test_grey_equals_torchvision():
    images = noise(2, 16)
    got = augment(images, torch.ones(2), still(2, grey=[True, False]), 16, 16)
    x = as_float(images)
    torch.testing.assert_close(got[0], TF.rgb_to_grayscale(x[0], num_output_channels=3), atol=1e-6, rtol=0)
    assert torch.equal(got[1], x[1])


# The numbers that are drawn


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_each_change_has_its_probability(name):
    """The holes and brightness of the authors' augmentations are in ``test_authors_augmentation``."""
    n = 4000
    a, draws = AUGMENTATIONS[name], draw(n, AUGMENTATIONS[name], generator=seeded())
    happened = {
        "flip": draws.flip,
        "rotate": draws.angle is not None and draws.angle != 0,
        "shift": draws.shift is not None and (draws.shift != 0).any(dim=1),
        "blur": draws.blur is not None and draws.blur > 1,
        "cutout": draws.holes is not None and (draws.holes[:, 0, 2:] > draws.holes[:, 0, :2]).all(dim=1),
        "jitter": draws.brightness is not None and draws.brightness != 1,
        "grey": draws.grey,
    }
    if a.fixed_holes:
        del happened["cutout"]
    if a.added_brightness:
        del happened["jitter"]
    for change, on in happened.items():
        probability = getattr(a, change)
        if on is None or on is False:
            assert probability == 0
        else:
            assert on.float().mean().item() == pytest.approx(probability, abs=0.03)


def test_augmentations_equal_the_paper():
    def changes(name):
        return {
            f: getattr(AUGMENTATIONS[name], f)
            for f in ("flip", "rotate", "shift", "blur", "cutout", "jitter", "grey")
        }

    off = dict.fromkeys(changes("none"), 0.0)
    geom = {**off, "flip": 0.5, "rotate": 0.5, "shift": 0.5, "blur": 0.5, "cutout": 0.5}
    assert changes("none") == off
    assert changes("standard") == {**off, "flip": 0.5}
    assert changes("geom") == geom
    assert changes("geom+color") == {**geom, "jitter": 0.5}
    assert changes("color-heavy") == {**off, "flip": 0.5, "jitter": 0.8, "grey": 0.2}
    assert AUGMENTATIONS["geom+color"].strength == (0.2, 0.2, 0.0, 0.0)
    assert AUGMENTATIONS["color-heavy"].strength == (0.4, 0.4, 0.4, 0.1)


def test_ranges_of_the_numbers():
    everything = Augmentation(rotate=1, shift=1, blur=1, jitter=1, strength=(0.4, 0.3, 0.2, 0.1))
    draws = draw(4000, everything, generator=seeded())

    def spans(values, low, high):
        slack = 0.01 * (high - low)
        return low <= values.min() < low + slack and high - slack < values.max() <= high

    assert spans(draws.place, 0, 1)
    assert spans(draws.angle.rad2deg(), -45, 45)
    assert spans(draws.shift, -1 / 16, 1 / 16)
    assert spans(draws.brightness, 0.6, 1.4)
    assert spans(draws.contrast, 0.7, 1.3)
    assert spans(draws.saturation, 0.8, 1.2)
    assert spans(draws.hue, -0.1, 0.1)
    assert (draws.blur.bincount()[[3, 5, 7]] / 4000 - 1 / 3).abs().max() < 0.03


def test_jitters_are_independent():
    draws = draw(4000, replace(AUGMENTATIONS["color-heavy"], jitter=1), generator=seeded())
    together = torch.stack([draws.brightness, draws.contrast, draws.saturation, draws.hue, draws.place[:, 0]])
    assert (together.corrcoef() - torch.eye(5)).abs().max() < 0.06


ALL = Augmentation(
    flip=0.5, rotate=0.5, shift=0.5, blur=0.5, cutout=0.5, jitter=0.5, strength=(0.4, 0.4, 0.4, 0.1), grey=0.5
)


def test_deterministic_and_per_image():
    images, aspect = noise(6, 32), torch.linspace(0.5, 2, 6)
    images[:] = images[:1]

    def run(seed):
        return augment(images, aspect, draw(6, ALL, generator=seeded(seed)), 24, 32)

    assert torch.equal(run(0), run(0))
    assert not torch.equal(run(0), run(1))
    assert len({row.sum().item() for row in run(0)}) == 6


@pytest.mark.parametrize("crop", ["random", "random_resized"])
def test_an_image_does_not_depend_on_its_batch(crop):
    images, aspect = noise(5, 32), torch.linspace(0.5, 2, 5)
    draws = draw(5, replace(ALL, crop=crop), generator=seeded())
    whole = augment(images, aspect, draws, 24, 32)
    for i in range(5):
        one = Draws(
            *(x if x is None else x[i : i + 1] for x in (getattr(draws, f.name) for f in fields(Draws)))
        )
        alone = augment(images[i : i + 1], aspect[i : i + 1], one, 24, 32)
        torch.testing.assert_close(alone, whole[i : i + 1], atol=1e-5, rtol=0)


@pytest.mark.parametrize("crop", ["random", "random_resized"])
@pytest.mark.parametrize("fill", [0, 255])
def test_results_stay_in_range(crop, fill):
    images = noise(40, 32)
    images[::2] = fill
    draws = draw(40, replace(ALL, crop=crop), generator=seeded())
    aspect = torch.linspace(0.3, 3, 40)
    got = augment(images, aspect, draws, 24, 32)
    assert got.dtype == torch.float32
    assert got.min() >= 0
    assert got.max() <= 1


@pytest.mark.parametrize("crop", ["random", "random_resized"])
def test_augment_does_not_synchronise_with_device(crop):
    """The meta device has no values: code that reads one, or whose shape depends on one, fails."""
    images, aspect = noise(3, 32).to("meta"), torch.ones(3, device="meta")
    draws = draw(3, replace(ALL, crop=crop), generator=seeded()).to("meta")
    assert all(getattr(draws, f.name) is None or getattr(draws, f.name).is_meta for f in fields(draws))
    assert augment(images, aspect, draws, 24, 32).shape == (3, 3, 24, 24)


@pytest.mark.gpu
@pytest.mark.parametrize("crop", ["random", "random_resized"])
def test_cuda_equals_cpu(crop):
    images, aspect = noise(8, 64), torch.linspace(0.5, 2, 8)
    draws = draw(8, replace(ALL, crop=crop), generator=seeded())
    here = augment(images, aspect, draws, 48, 64)
    there = augment(images.cuda(), aspect.cuda(), draws.to("cuda"), 48, 64).cpu()
    assert (here - there).abs().mean() < 2**-11, "half floats below 1 are as far apart at most"
    exact = augment(images.cuda(), torch.ones(8, device="cuda"), still(8).to("cuda"), 48, 64).cpu()
    assert torch.equal(exact, as_float(images)[:, :, 8:56, 8:56].half())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: make_augmentation("geom+colour"),
            r"none, crop, standard, geom, .* did you mean 'geom\+color'",
        ),
        (lambda: make_augmentation("standard", "center"), "random, random_resized, central, got 'center'"),
        (
            lambda: make_augmentation("standard", crop_scale=(0.0, 1.0)),
            r"0 < least <= largest <= 1, got \(0.0, 1.0\)",
        ),
        (lambda: make_augmentation("none", "middle"), "got 'middle'"),
        (
            lambda: Augmentation(rotate=0.5, shift=0.4, together=True),
            "rotate and shift must be equal when they happen together, got 0.5 and 0.4; use one",
        ),
        (lambda: Augmentation(blur=2), "blur must be a probability from 0 to 1, got 2"),
        (lambda: augment(noise(1, 32), torch.ones(1), still(), 24, 20), "at least the size of the crop, 24"),
    ],
)
def test_errors(build, message):
    with pytest.raises(ValueError, match=message):
        build()
