"""The final model of a run knows its input."""

import jaxtyping
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file

from divconq import load_model
from divconq.model import make_model
from divconq.runs.exported import save_model
from divconq.runs.folder import Run
from divconq.train import train
from divconq.trained_run import TrainedRun

SETTINGS = {"backbone": "small", "dim": 8, "pooling": "avg", "image_size": 32, "resize": 36}


def test_a_saved_model_gives_the_same_embedding(tmp_path):
    model = make_model("small", 8, mean=(0.1, 0.2, 0.3)).eval()
    save_model(model, tmp_path / "model.safetensors", SETTINGS)
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(load_model(tmp_path)(x), model(x))
    assert torch.equal(load_model(tmp_path / "model.safetensors")(x), model(x))


def test_a_file_of_another_program_is_refused(tmp_path):
    save_file({"w": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="was not written by divconq"):
        load_model(tmp_path)


@pytest.mark.parametrize("change", [{"backbone": 5}, {"dim": "8"}, {"image_size": None}, {"pooling": []}])
def test_settings_of_another_type_are_one_sentence(tmp_path, change):
    save_model(make_model("small", 8), tmp_path / "model.safetensors", SETTINGS | change)
    with pytest.raises(
        ValueError, match=r"is damaged or from another version of divconq .*; export it again"
    ):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("x", "got"),
    [
        (torch.rand(1, 3, 64, 64), "64 x 64 of torch.float32"),
        (torch.rand(1, 3, 32, 24), "24 x 32 of torch.float32"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "32 x 32 of torch.uint8"),
    ],
)
def test_a_trained_model_refuses_another_input(tmp_path, monkeypatch, x, got):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as it is for users
    save_model(make_model("small", 8), tmp_path / "model.safetensors", SETTINGS)
    with pytest.raises(ValueError, match=f"takes images of 32 x 32 pixels as floats in .*, got {got}; make"):
        load_model(tmp_path)(x)


def test_the_transform_makes_what_an_evaluation_sees(tiny, tmp_path, photos):
    train(tiny.replace(epochs=1), tmp_path / "run")
    expected, images = TrainedRun(tmp_path / "run", device="cpu").embed(str(photos), "test")
    for model in (load_model(tmp_path / "run"), Run.open(tmp_path / "run").model("best")):
        files = [photos / path for path in images.paths]
        x = torch.stack([model.transform(file) for file in files])
        assert x.shape[1:] == (3, tiny.data.image_size, tiny.data.image_size)
        with torch.no_grad():
            torch.testing.assert_close(F.normalize(model(x)), expected, atol=1e-5, rtol=0)
        opened = [Image.open(file) for file in files]
        assert torch.equal(torch.stack([model.transform(image) for image in opened]), x)
        decoded = [image.convert("RGB") for image in opened]
        assert torch.equal(torch.stack([model.transform(image) for image in decoded]), x)


def test_the_transform_does_not_change_the_image_of_the_user(tmp_path):
    save_model(make_model("small", 8), tmp_path / "model.safetensors", SETTINGS)
    transform = load_model(tmp_path).transform
    noise = torch.randint(
        0, 256, (600, 900, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    exif = Image.Exif()
    exif[0x0112] = 6  # stored on its side
    Image.fromarray(noise.numpy()).save(tmp_path / "large.jpg", exif=exif)
    with Image.open(tmp_path / "large.jpg") as image:
        seen = transform(image)
        assert image.size == (900, 600)
        assert torch.equal(seen, transform(tmp_path / "large.jpg"))
        image.load()
        torch.testing.assert_close(transform(image), seen, atol=0.02, rtol=0)
        assert image.size == (900, 600)
