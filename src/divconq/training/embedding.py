"""The embedding pass over all images of a dataset, in dataset order."""

from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from divconq.accel.graphs import Captured, Fallback
from divconq.data.batches.loading import index_device, read_ahead
from divconq.data.batches.views import Views, apply_view
from divconq.data.dataset import ImageSet
from divconq.distributed import gather, is_first, shard
from divconq.model import Embedder
from divconq.training.stored_features import StoredFeatures

Layer: TypeAlias = Literal["embedding", "features"]
Forward: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]


def see_features(model: Embedder) -> Forward:
    """Return the function from a batch of stored images and its view matrices to the features before the head."""

    def forward(pixels: Tensor, across: Tensor, down: Tensor) -> Tensor:
        return model.features(apply_view(pixels, across, down))

    return forward


def fast_features(model: Embedder) -> Forward:
    """Return ``see_features`` compiled and captured on its first call, for a GPU. Uses plain code if that fails."""
    plain = see_features(model)
    compiled = torch.compile(plain, dynamic=False)
    captured = Captured(lambda *batch: (compiled(*batch),), model.mean.device)
    return Fallback(lambda *batch: captured(*batch)[0], plain, "the embedding pass")


@torch.inference_mode()
def embed(
    model: Embedder,
    images: ImageSet,
    mask: Float[Tensor, " d"] | None = None,
    *,
    size: int,
    resize: int,
    decode_size: int | None = None,
    layer: Layer = "embedding",
    batch: int = 256,
    bf16: bool = False,
    fast: Forward | None = None,
    progress: str | None = None,
) -> Float[Tensor, "n d"]:
    """Return the unit vectors normalize(f(x) * mask) of all images, on the device of the model.

    ``mask`` None means ones. ``decode_size`` is the short side at which the images were decoded, by default
    ``resize``. ``layer="features"`` returns the normalised input of the head instead. ``fast`` is a compiled form of
    ``see_features``; it receives full batches only. ``progress`` is the title of a progress bar. Stored features go
    straight to the head: they need no view, no ``fast`` and no progress bar. With several processes, each embeds its
    share, and all return the whole result.
    """
    was_training, device = model.training, model.mean.device
    model.eval()
    own = order = torch.arange(len(images))[shard(len(images))]
    if isinstance(images.store, StoredFeatures):
        found = iter(images.store.load(own.to(device)).split(batch))
    else:
        if fast is not None:
            order = own[torch.arange(-(-len(own) // batch) * batch) % len(own)]
        forward, title = fast or see_features(model), None if progress is None or not is_first() else progress
        found = _features(
            forward,
            images,
            order,
            device,
            size=size,
            resize=resize,
            decode_size=decode_size,
            batch=batch,
            progress=title,
        )
    with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        parts = []
        for f in found:
            f = model.head(f) if layer == "embedding" else f
            parts.append(f.to(torch.float32, copy=True))  # a captured graph reuses its output
    f = torch.cat(parts)[: len(own)]
    model.train(was_training)
    return gather(F.normalize(f if mask is None else f * mask).clone(), len(images))


@torch.no_grad()
def backbone_features(
    model: Embedder,
    images: ImageSet,
    *,
    size: int,
    resize: int,
    decode_size: int | None = None,
    batch: int = 256,
    progress: str | None = None,
) -> Float[Tensor, "n c"]:
    """Return the features of all images in their test view, in float32 and on the CPU. Every process computes all.

    >>> from divconq.data.dataset import InMemory
    >>> from divconq.model import SmallNet
    >>> store = InMemory(torch.zeros(3, 10, 10, 3, dtype=torch.uint8))
    >>> images = ImageSet(store, torch.tensor([0, 0, 0]), ("a",), ("1", "2", "3"))
    >>> backbone_features(Embedder(SmallNet(), 160, 8), images, size=8, resize=8).shape
    torch.Size([3, 160])
    """
    was_training, device, order = model.training, model.mean.device, torch.arange(len(images))
    model.eval()
    found = _features(
        see_features(model),
        images,
        order,
        device,
        size=size,
        resize=resize,
        decode_size=decode_size,
        batch=batch,
        progress=progress,
    )
    features = torch.cat([f.float().cpu() for f in found])
    model.train(was_training)
    return features


def _features(
    forward: Forward,
    images: ImageSet,
    order: Tensor,
    device: torch.device,
    *,
    size: int,
    resize: int,
    decode_size: int | None,
    batch: int,
    progress: str | None,
) -> Iterator[Float[Tensor, "_ c"]]:
    """Return an iterator over the features of the images in ``order``. ``progress`` None shows no progress bar."""
    batches = order.to(index_device(images.store)).split(batch)
    aspect, side = images.store.aspect, images.store.size
    views = Views(aspect, size=size, resize=resize, side=side, device=device, decode_size=decode_size)
    reading = zip(order.to(device).split(batch), read_ahead(images.store, batches, device), strict=True)
    bar = tqdm(reading, progress, len(batches), disable=progress is None, leave=False)
    return (forward(pixels, *views.of(index)) for index, pixels in bar)
