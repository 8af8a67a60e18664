"""The one pass that embeds every image, in dataset order."""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from divconq.data.batches import read_ahead
from divconq.data.protocol import ImageSet
from divconq.data.transforms import test_view
from divconq.model import Embedder


@torch.inference_mode()
def embed(
    model: Embedder,
    images: ImageSet,
    mask: Float[Tensor, " d"] | None = None,
    *,
    size: int,
    resize: int,
    layer: Literal["embedding", "features"] = "embedding",
    batch: int = 256,
    bf16: bool = False,
    progress: str | None = None,
) -> Float[Tensor, "n d"]:
    """Unit vectors normalize(f(x) * mask) of all images, on the model's device; ``mask`` None is ones.

    ``layer`` = features gives what the head sees instead. ``progress`` names a progress bar.
    """
    was_training, device = model.training, model.mean.device
    model.eval()
    batches = torch.arange(len(images)).split(batch)
    aspect, parts = images.pixels.aspect, []
    reading = zip(batches, read_ahead(images.pixels, batches), strict=True)
    with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        for index, pixels in tqdm(reading, progress, len(batches), disable=progress is None, leave=False):
            x = test_view(pixels.to(device), aspect[index].to(device), size, resize)
            f = model.features(x) if layer == "features" else model(x)
            parts.append(f.float())
    f = torch.cat(parts)
    model.train(was_training)
    return F.normalize(f if mask is None else f * mask).clone()
