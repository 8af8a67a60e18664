"""The one pass that embeds every image, in dataset order."""

from collections.abc import Callable
from typing import Literal, TypeAlias, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from divconq.data.batches import read_ahead
from divconq.data.protocol import ImageSet
from divconq.data.transforms import test_view
from divconq.graphs import Captured, Fallback
from divconq.model import Embedder

Layer: TypeAlias = Literal["embedding", "features"]
Forward: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def view_and_embed(model: Embedder, *, size: int, resize: int, layer: Layer = "embedding") -> Forward:
    """What is done to a batch of images and their aspects: the test view, and the model up to ``layer``."""

    def forward(pixels: Tensor, aspect: Tensor) -> Tensor:
        x = test_view(pixels, aspect, size, resize)
        return model.features(x) if layer == "features" else cast(Tensor, model(x))

    return forward


def fast_embedding(model: Embedder, *, size: int, resize: int, layer: Layer = "embedding") -> Forward:
    """The same for a GPU, compiled and captured when it is first used; as it is, if that does not work."""
    plain = view_and_embed(model, size=size, resize=resize, layer=layer)
    compiled = torch.compile(plain, dynamic=False)
    captured = Captured(lambda pixels, aspect: (compiled(pixels, aspect),), model.mean.device)
    return Fallback(lambda pixels, aspect: captured(pixels, aspect)[0], plain, "the embedding pass")


@torch.inference_mode()
def embed(
    model: Embedder,
    images: ImageSet,
    mask: Float[Tensor, " d"] | None = None,
    *,
    size: int,
    resize: int,
    layer: Layer = "embedding",
    batch: int = 256,
    bf16: bool = False,
    fast: Forward | None = None,
    progress: str | None = None,
) -> Float[Tensor, "n d"]:
    """Unit vectors normalize(f(x) * mask) of all images, on the model's device; ``mask`` None is ones.

    ``layer`` = features gives what the head sees instead. ``fast`` is a faster form of what is done to images and
    aspects (``fast_embedding``), and gets batches of one length only. ``progress`` names a progress bar.
    """
    was_training, device = model.training, model.mean.device
    model.eval()
    forward = fast or view_and_embed(model, size=size, resize=resize, layer=layer)
    order = torch.arange(len(images))
    if fast is not None:
        order = torch.arange(-(-len(images) // batch) * batch) % len(images)
    batches, aspect, parts = order.split(batch), images.pixels.aspect[order].to(device).split(batch), []
    reading = zip(aspect, read_ahead(images.pixels, batches, device), strict=True)
    with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        for shape, pixels in tqdm(reading, progress, len(batches), disable=progress is None, leave=False):
            parts.append(
                forward(pixels, shape).to(torch.float32, copy=True)
            )  # what is captured is used again
    f = torch.cat(parts)[: len(images)]
    model.train(was_training)
    return F.normalize(f if mask is None else f * mask).clone()
