import numpy as np
import pytest
import torch
from PIL import Image

from divconq.bench.torchvision_loop import (
    PlainLoop,
    add_brightness,
    box_blur,
    cut_holes,
    plain_rates,
    transforms,
)
from divconq.data.batches.augmentation import AUGMENTATIONS, BLURS, HOLE, HOLES, make_augmentation
from divconq.data.sources.folder import read_folder
from divconq.model import make_model


def view_of(name, crop, size=16):
    changes = make_augmentation(name, crop)
    return transforms(changes, size=size, resize=size + 2, mean=torch.zeros(3), std=torch.ones(3))


@pytest.mark.parametrize("crop", ["random", "random_resized"])
@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_every_augmentation_has_its_like(name, crop):
    torch.manual_seed(0)
    image = Image.merge("RGB", [Image.effect_noise((40, 30), 60) for _ in range(3)])
    seen = torch.stack([view_of(name, crop)(image) for _ in range(40)])
    assert seen.shape == (40, 3, 16, 16)
    assert 0 <= seen.min() < seen.max() <= 1
    assert bool((seen == seen[0]).all()) == (name == "none")
    grey = (seen == seen[:, :1]).flatten(1).all(1)
    assert bool(grey.any()) == (name == "color-heavy")


def test_holes_are_as_many_and_as_large_as_ours():
    torch.manual_seed(0)
    cut = [1 - cut_holes(torch.ones(1, 60, 60)).mean().item() for _ in range(200)]
    assert 0 < max(cut) <= HOLES * HOLE**2


def test_fixed_holes_are_as_large_as_ours():
    torch.manual_seed(0)
    cut = [(cut_holes(torch.ones(1, 224, 224), fixed=True) == 0).sum().item() for _ in range(50)]
    assert min(cut) == 40 * 40
    assert max(cut) <= HOLES * 40 * 40


def test_brightness_is_added_to_the_multiplied_image():
    torch.manual_seed(0)
    black, grey = (
        torch.stack([add_brightness(torch.full((3, 1, 1), value), (0.2, 0.1, 0, 0)) for _ in range(400)])
        for value in (0.0, 0.5)
    )
    assert 0.19 < black.max() <= 0.2
    assert black.min() == 0
    assert 0.25 <= grey.min() < 0.3
    assert 0.7 < grey.max() <= 0.75


def test_a_blur_averages_one_of_our_boxes():
    torch.manual_seed(0)
    dot = np.zeros((15, 15, 3), dtype=np.uint8)
    dot[7, 7] = 255
    widths = {int((np.asarray(box_blur(Image.fromarray(dot)))[7, :, 0] > 0).sum()) for _ in range(50)}
    assert widths == set(BLURS)


def test_the_plain_network_is_the_models_and_learns():
    model = make_model("small", 8, dropout=0.0)
    x, labels = torch.rand(6, 3, 16, 16), torch.tensor([0, 0, 1, 1, 2, 2])
    loop = PlainLoop(model, torch.device("cpu"), lr=1e-2)
    assert torch.allclose(loop.network((x - model.mean) / model.std), model(x), atol=1e-5)
    losses = [loop.step(x, labels).item() for _ in range(30)]
    assert losses[-1] < losses[0]


def test_files_go_through_the_loop(photos):
    images = read_folder(photos).train
    rates = plain_rates(
        make_model("small", 8),
        images.store.files,
        images.labels,
        make_augmentation("standard"),
        size=16,
        resize=18,
        batch=4,
        device=torch.device("cpu"),
        batches=2,
        rounds=2,
    )
    assert len(rates) == 2
    assert min(rates) > 0
