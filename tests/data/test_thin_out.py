"""Training on a part of the classes and images."""

import pytest
import torch

from divconq.config import Config
from divconq.data import thin_out
from divconq.data.dataset import ImageSet, InMemory
from divconq.training.datasets import open_data


def image_set(sizes):
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))]
    pixels = torch.zeros(len(labels), 4, 4, 3, dtype=torch.uint8)
    names = tuple(map(str, range(len(sizes))))
    return ImageSet(InMemory(pixels), labels, names, tuple(map(str, range(len(labels)))))


@pytest.mark.parametrize("classes", [None, 2, 5])
@pytest.mark.parametrize("per_class", [None, 2, 4])
def test_each_class_keeps_so_many_images(classes, per_class):
    sizes = [6, 3, 2, 4, 9]
    images = image_set(sizes)
    thin = thin_out(images, classes, per_class, seed=3)
    assert len(thin.names) == (classes or 5)
    for label, name in enumerate(thin.names):
        kept = (thin.labels == label).sum().item()
        assert kept == min(sizes[int(name)], per_class or 9)
    for path, label in zip(thin.paths, thin.labels.tolist(), strict=True):
        assert images.labels[int(path)].item() == int(thin.names[label])


def test_the_draw_depends_on_the_seed_only():
    images = image_set([4] * 20)
    first, again, other = (thin_out(images, 5, 2, seed=seed) for seed in (0, 0, 1))
    assert first.paths == again.paths
    assert first.names != other.names
    fewer = thin_out(images, 3, 2, seed=0)
    assert set(fewer.names) < set(first.names), "fewer classes are a part of more classes"


def test_training_takes_the_part_and_tests_on_everything():
    config = Config.of(data="demo", train_classes=10, train_images=5, val_classes=4, batch=16)
    data, validation = open_data(config)
    assert (len(data.train), len(data.train.names)) == (50, 10)
    assert (len(validation), len(data.test)) == (120, 1200)


def test_too_many_classes_are_refused():
    with pytest.raises(
        ValueError, match=r"train_classes must be at most .* 76, got 77; lower --train-classes"
    ):
        open_data(Config.of(data="demo", train_classes=77, val_classes=4))
