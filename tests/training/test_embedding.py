import pytest
import torch
import torch.nn.functional as F

from divconq.data.batches.views import test_view as view
from divconq.data.dataset import ImageSet, InMemory, subset
from divconq.model import Embedder, SmallNet
from divconq.training.embedding import embed, fast_features, see_features

SIZES = {"size": 16, "resize": 20}


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def images_of(n):
    pixels = torch.randint(256, (n, 24, 24, 3), generator=seeded(0), dtype=torch.uint8)
    shape = 0.6 + torch.rand(n, generator=seeded(1))
    return ImageSet(InMemory(pixels, shape), torch.zeros(n, dtype=torch.int64), ("a",), tuple("x" * n))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Embedder(SmallNet(), 160, 8, dropout=0.5)


@pytest.mark.parametrize("layer", ["embedding", "features"])
def test_embeddings_equal_single_image_forward(model, layer):
    images, mask = images_of(7), torch.rand(8 if layer == "embedding" else 160, generator=seeded(2))
    x = embed(model, images, mask, layer=layer, batch=3, **SIZES)
    for i in range(7):
        pixels, aspect = images.store.load(torch.tensor([i])), images.store.aspect[[i]]
        with torch.no_grad():
            f = model.eval().features(view(pixels, aspect, **SIZES))
            f = f if layer == "features" else model.head(f)
        assert torch.allclose(x[i], F.normalize(f * mask)[0], atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_embed_keeps_the_mode_of_the_model(model, training):
    model.train(training)
    embed(model, images_of(2), **SIZES)
    assert model.training is training


@pytest.mark.parametrize("n", [1, 5, 8, 13, 16])
@pytest.mark.parametrize("layer", ["embedding", "features"])
def test_fast_form_receives_full_batches_only(model, n, layer):
    forward, lengths = see_features(model), []

    def fast(pixels, across, down):
        assert len(pixels) == len(across) == len(down)
        lengths.append(len(pixels))
        return forward(pixels, across, down)

    images = subset(images_of(2 * n), torch.arange(2 * n) % 2 == 0)
    x = embed(model, images, layer=layer, batch=8, fast=fast, **SIZES)
    assert lengths == -(-n // 8) * [8]
    assert len(x) == n
    assert torch.allclose(x, embed(model, images, layer=layer, batch=8, **SIZES), atol=1e-5)


def test_fast_form_may_reuse_its_output(model):
    forward, held = see_features(model), torch.zeros(4, 160)
    images = images_of(12)
    x = embed(model, images, batch=4, fast=lambda *batch: held.copy_(forward(*batch)), **SIZES)
    assert torch.allclose(x, embed(model, images, batch=4, **SIZES), atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("layer", ["embedding", "features"])
@pytest.mark.parametrize("bf16", [False, True])
def test_captured_embedding_equals_plain_after_weight_changes(model, layer, bf16):
    torch.compiler.reset()
    model, images = model.cuda(), images_of(50)
    fast = fast_features(model)
    for _ in range(3):
        got, expected = (
            embed(model, images, layer=layer, batch=8, bf16=bf16, fast=form, **SIZES) for form in (fast, None)
        )
        assert (got * expected).sum(dim=1).min() > (0.999 if bf16 else 0.99999)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + 0.2 * torch.rand_like(parameter))
    assert fast.fast is not None, "it was captured"
