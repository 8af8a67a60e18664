import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import CenterCrop, Compose, Resize, ToTensor
from torchvision.transforms.functional import resize

from divconq.data.batches.views import (
    LONGEST,
    Views,
    apply_view,
    bilinear,
    lanczos,
    shown_side,
    stored_side,
    true_size,
)
from divconq.data.batches.views import test_view as view
from divconq.data.images.decoding import decode

CPU = torch.device("cpu")


def noise(n, side):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (n, side, side, 3), generator=generator, dtype=torch.uint8)


def test_shown_side_undoes_stored_side():
    assert all(shown_side(stored_side(resize)) == resize for resize in range(1, 600))


@pytest.mark.parametrize(("length", "to"), [(64, 80), (64, 64), (100, 80), (401, 80), (7, 9), (1, 5)])
def test_lanczos_equals_pillow(length, to):
    rows = np.random.default_rng(0).random((1, length)).astype(np.float32)
    expected = np.asarray(Image.fromarray(rows).resize((to, 1), Image.Resampling.LANCZOS))[0]
    assert np.allclose(lanczos(length, to).numpy() @ rows[0], expected, atol=1e-5)
    assert torch.equal(lanczos(length, to)[1:3], lanczos(length, to, 1, min(2, to - 1)))


@pytest.mark.parametrize(("length", "to"), [(100, 80), (401, 80), (9, 7), (64, 64), (30, 80)])
def test_bilinear_equals_torchvision(length, to):
    row = torch.rand(1, 1, length, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = resize(row.float(), [1, to], antialias=True)[0, 0]
    torch.testing.assert_close((bilinear(length, to) @ row[0, 0]).float(), expected, atol=1e-5, rtol=0)
    assert torch.equal(bilinear(length, to)[1:3], bilinear(length, to, 1, 2))


@pytest.mark.parametrize("side", [64, 50])
def test_view_without_resizing_copies_pixels(side):
    images = noise(3, side)
    got = view(images, torch.ones(3), 40, side)
    edge = (side - 40) // 2
    expected = images.permute(0, 3, 1, 2)[:, :, edge : edge + 40, edge : edge + 40].float() / 255
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("aspect", [1.0, 1.25, 0.8, 1.2])
def test_view_inverts_the_resampling_to_a_square(aspect):
    """If the long side is at most S, nothing is lost except the rounding of pixels."""
    resize, size = 64, 56
    width, height = (int(length) for length in true_size(torch.tensor([aspect], dtype=torch.float64), resize))
    true = np.random.default_rng(0).integers(60, 196, (height, width, 3), dtype=np.uint8)
    side = stored_side(resize)
    stored = Image.fromarray(true).resize((side, side), Image.Resampling.LANCZOS)
    got = view(torch.from_numpy(np.array(stored))[None], torch.tensor([aspect]), size, resize)[0]
    left, top = round((width - size) / 2), round((height - size) / 2)
    expected = torch.from_numpy(true[top : top + size, left : left + size]).permute(2, 0, 1) / 255
    assert (got - expected).abs().mean() < 1 / 255


def rough_photo(height, width):
    """Return noise with the spectrum of photographs."""
    rng = np.random.default_rng(0)
    y, x = np.fft.fftfreq(height)[:, None] * height, np.fft.fftfreq(width)[None] * width
    spectrum = np.fft.fft2(rng.standard_normal((3, height, width))) / np.maximum(1, np.hypot(x, y)) ** 1.5
    waves = np.fft.ifft2(spectrum).real
    low, high = waves.min(), waves.max()
    return Image.fromarray(((waves - low) / (high - low) * 255).astype(np.uint8).transpose(1, 2, 0))


def sharp_photo(height, width):
    """Return a picture of overlapping rectangles."""
    rng = np.random.default_rng(0)
    canvas = np.zeros((height, width, 3), np.uint8)
    for _ in range(150):
        y, x = rng.integers(0, height), rng.integers(0, width)
        h, w = rng.integers(5, height // 3), rng.integers(5, width // 3)
        canvas[y : y + h, x : x + w] = rng.integers(0, 256, 3)
    return Image.fromarray(canvas)


@pytest.mark.parametrize("photo", [rough_photo, sharp_photo])
@pytest.mark.parametrize(
    ("height", "width"), [(256, 340), (512, 512), (600, 800), (500, 375), (500, 1000), (700, 690), (120, 150)]
)
def test_view_is_close_to_torchvision(photo, height, width, tmp_path):
    """The mean difference is below half a grey level of 255, or below one if the long side exceeds S."""
    image = photo(height, width)
    image.save(tmp_path / "0.png")
    stored = torch.from_numpy(decode(tmp_path / "0.png", stored_side(256)).copy())[None]
    expected = Compose([Resize(256), CenterCrop(224), ToTensor()])(image)
    got = view(stored, torch.tensor([width / height]), 224, 256)[0]
    fits = max(height, width) / min(height, width) <= 1.25
    assert (got - expected).abs().mean() < (0.5 if fits else 1.0) / 255


@pytest.mark.parametrize("decode_size", [320, 512])
@pytest.mark.parametrize("photo", [rough_photo, sharp_photo])
@pytest.mark.parametrize(
    ("height", "width"),
    [(512, 512), (600, 800), (500, 375), (500, 1000), (700, 690), (320, 427)],
)
def test_view_of_larger_stored_images_is_close_to_torchvision(photo, height, width, decode_size, tmp_path):
    """The limits hold if the file is as large as the decoded image; smaller files get blurred."""
    image = photo(height, width)
    image.save(tmp_path / "0.png")
    stored = torch.from_numpy(decode(tmp_path / "0.png", stored_side(decode_size)).copy())[None]
    expected = Compose([Resize(256), CenterCrop(224), ToTensor()])(image)
    got = view(stored, torch.tensor([width / height]), 224, 256, decode_size)[0]
    fits = max(height, width) / min(height, width) <= 1.34
    assert (got - expected).abs().mean() < (0.65 if fits else 1.0) / 255


def test_view_of_larger_stored_images_is_the_least_squares_estimate():
    """Solve for the rows of the matrix one by one, from random originals of both sizes."""
    length, decoded, size, side = 30, 40, 20, 50
    first, ridge = (length - size) // 2, np.sqrt(1e-3) * np.eye(side)
    squash, stored, shown = lanczos(decoded, side).numpy(), [ridge], [np.zeros((side, size))]
    for times in (1, 2):
        pixels = np.sqrt(times) * np.eye(times * decoded)
        to_decoded = resize(torch.from_numpy(pixels)[None, None], [times * decoded, decoded], antialias=True)
        to_shown = resize(torch.from_numpy(pixels)[None, None], [times * decoded, length], antialias=True)
        stored.append(to_decoded[0, 0].numpy() @ squash.T)
        shown.append(to_shown[0, 0].numpy()[:, first : first + size])
    expected = np.linalg.lstsq(np.concatenate(stored), np.concatenate(shown), rcond=None)[0].T
    expected /= expected.sum(axis=1, keepdims=True)
    views = Views(torch.ones(1), size=size, resize=length, side=side, device=CPU, decode_size=decoded)
    for matrix in views.of(torch.tensor([0])):
        np.testing.assert_allclose(matrix[0].numpy(), expected, atol=1e-5)
        torch.testing.assert_close(matrix.sum(dim=2), torch.ones(1, size))


def test_decoding_at_the_size_shown_changes_nothing():
    images, aspect = noise(6, 80), torch.linspace(0.4, 2.5, 6)
    assert torch.equal(view(images, aspect, 56, 64, 64), view(images, aspect, 56, 64))
    assert not torch.equal(view(images, aspect, 56, 64, 72), view(images, aspect, 56, 64))


@pytest.mark.parametrize("decode_size", [None, 24, 512])
def test_view_of_very_long_images(decode_size, tmp_path):
    image = Image.linear_gradient("L").resize((4000, 20)).convert("RGB")
    image.save(tmp_path / "0.png")
    stored = torch.from_numpy(decode(tmp_path / "0.png", 20).copy())[None]
    assert LONGEST * 20 < 200 * 16
    got = view(stored, torch.tensor([200.0]), 12, 16, decode_size)[0]
    assert got.isfinite().all()
    assert 0 < got.mean() < 1


@pytest.mark.parametrize("decode_size", [None, 24])
def test_each_image_uses_its_own_matrices(decode_size):
    images, aspect = noise(5, 20), torch.tensor([1.0, 1.5, 0.7, 1.5, 3.0])
    views = Views(aspect, size=12, resize=16, side=20, device=CPU, decode_size=decode_size)
    order = torch.tensor([3, 0, 4, 4, 2])
    together = apply_view(images[order], *views.of(order))
    for i, row in enumerate(order.tolist()):
        alone = view(images[row : row + 1], aspect[row : row + 1], 12, 16, decode_size)[0]
        torch.testing.assert_close(together[i], alone, atol=1e-6, rtol=0)


@pytest.mark.parametrize("fill", [0, 255])
def test_view_stays_in_range(fill):
    images = noise(40, 32)
    images[::2] = fill
    got = view(images, torch.linspace(0.3, 3, 40), 24, 32)
    assert got.dtype == torch.float32
    assert got.min() >= 0
    assert got.max() <= 1


def test_crop_larger_than_image_is_refused():
    with pytest.raises(ValueError, match="at least the size of the crop, 24, got 20; use 24 or more"):
        view(noise(1, 32), torch.ones(1), 24, 20)


@pytest.mark.gpu
def test_view_on_cuda_equals_cpu():
    images, aspect = noise(8, 80), torch.linspace(0.5, 2, 8)
    there = view(images.cuda(), aspect.cuda(), 56, 64).float().cpu()
    assert (there - view(images, aspect, 56, 64)).abs().max() < 4e-3
