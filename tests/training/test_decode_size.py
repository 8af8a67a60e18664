"""Images that are decoded and stored larger than the test view shows them."""

import pytest
import torch
import torch.nn.functional as F
from torchvision.transforms.v2 import functional as TF

from divconq import load_model
from divconq.data.batches.augmentation import draw
from divconq.data.batches.transforms import augment, augment_antialiased
from divconq.data.batches.views import test_view as view
from divconq.data.images.transform import Transform
from divconq.model import make_model
from divconq.runs.exported import save_model
from divconq.runs.folder import Run
from divconq.train import train
from divconq.trained_run import TrainedRun
from divconq.training.batches import EpochBatches
from divconq.training.datasets import open_data
from divconq.training.run_data import open_split
from divconq.training.seeds import epoch_seed
from divconq.training.setup import prepare


@pytest.fixture
def large(tiny):
    """Shown at 20, decoded at 40."""
    return tiny.replace(epochs=2, decode_size=40, crop="random_resized", augmentation="geom+color-authors")


def test_images_are_stored_at_the_decoded_size(tiny, large):
    assert open_data(tiny)[0].train.store.size == 25
    assert open_data(large)[0].train.store.size == 50
    assert (tiny.data.decoded, large.data.decoded) == (20, 40)


def test_training_sees_the_antialiased_crop(large):
    job = prepare(large)
    plan, batches = EpochBatches(job).of(0)
    x, labels, _ = next(batches)
    pixels, aspect = job.train.store.load(plan.indices[0]), job.train.store.aspect[plan.indices[0]]
    generator = torch.Generator().manual_seed(epoch_seed(large.optimisation.seed, 0))
    draws = draw(len(labels), job.augmentation, generator=generator)
    assert torch.equal(x, augment_antialiased(pixels, aspect, draws, 16, 20))
    assert not torch.equal(x, augment(pixels, aspect, draws, 16, 20))


def test_evaluation_export_and_resume_see_the_same_view(large, tmp_path, photos):
    whole = train(large, tmp_path / "run")
    run = TrainedRun(tmp_path / "run", device="cpu")
    expected, images = run.embed(str(photos), "test")
    assert images.store.size == 50
    pixels = images.store.load(torch.arange(len(images)))
    model = load_model(tmp_path / "run")
    assert model.transform == Run.open(tmp_path / "run").model("best").transform == Transform(16, 20, 40)
    x = torch.stack([model.transform(photos / path) for path in images.paths])
    torch.testing.assert_close(x, view(pixels, images.store.aspect, 16, 20, 40), atol=1e-5, rtol=0)
    assert (x - view(pixels, images.store.aspect, 16, 20)).abs().max() > 0.01
    with torch.no_grad():
        torch.testing.assert_close(F.normalize(model(x)), expected, atol=1e-4, rtol=0)
    train(large.replace(epochs=1), tmp_path / "part")
    resumed = train(large, tmp_path / "part", resume=True)
    assert [record["loss"] for record in resumed] == [record["loss"] for record in whole]
    assert resumed[-1]["recall@1"] == whole[-1]["recall@1"]


def test_a_plain_folder_is_decoded_as_in_training(large, tmp_path, photos):
    train(large.replace(epochs=1), tmp_path / "run")
    flat = next(folder for folder in photos.rglob("*") if folder.is_dir())
    assert open_split(Run.open(tmp_path / "run"), str(flat)).store.size == 50


def test_a_cache_of_another_size_is_not_used(tiny, large):
    small, big = (prepare(config).train.store for config in (tiny, large))
    everything = torch.arange(len(small.aspect))
    source = open_data(large)[0].train.store
    assert (small.size, big.size) == (25, 50)
    assert torch.equal(big.load(everything), source.load(everything))
    same = prepare(tiny.replace(resize=40)).train.store
    assert torch.equal(same.load(everything), big.load(everything)), "one cache for both"


def test_without_augmentation_the_crop_is_the_centre(large):
    job = prepare(large.replace(augmentation="none"))
    plan, batches = EpochBatches(job).of(0)
    x, _, _ = next(batches)
    pixels = job.train.store.load(plan.indices[0]).permute(0, 3, 1, 2).float() / 255
    expected = TF.resized_crop(pixels, 5, 5, 40, 40, [16, 16], antialias=True)
    torch.testing.assert_close(x, expected, atol=1e-5, rtol=0)


SETTINGS = {"backbone": "small", "dim": 8, "pooling": "avg", "image_size": 32, "resize": 36}


@pytest.mark.parametrize(
    "settings", [SETTINGS, {**SETTINGS, "decode_size": None}, {**SETTINGS, "decode_size": 48}]
)
def test_files_of_older_versions_have_no_decode_size(tmp_path, settings):
    save_model(make_model("small", 8), tmp_path / "model.safetensors", settings)
    assert load_model(tmp_path).transform == Transform(32, 36, settings.get("decode_size"))


def test_a_decode_size_of_another_type_is_one_sentence(tmp_path):
    save_model(make_model("small", 8), tmp_path / "model.safetensors", {**SETTINGS, "decode_size": "48"})
    with pytest.raises(
        ValueError, match=r"is damaged or from another version of divconq .*; export it again"
    ):
        load_model(tmp_path)
