"""Decoded images kept in the memory of the device that works on them, if there is room."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from divconq.data.cache import CHUNK, Cached
from divconq.data.protocol import ImageSet


@dataclass(frozen=True)
class Resident:
    """Decoded images in the memory of ``device``, or in pinned memory, from which batches go there directly.

    >>> store = Resident(torch.zeros(4, 8, 8, 3, dtype=torch.uint8), torch.ones(4), torch.device("cpu"))
    >>> store.load(torch.tensor([2, 0])).shape
    torch.Size([2, 8, 8, 3])
    """

    images: UInt8[Tensor, "n size size 3"]
    aspect: Float[Tensor, " n"]
    device: torch.device

    @property
    def size(self) -> int:
        """The side of the square."""
        return self.images.shape[1]

    def load(self, index: Int64[Tensor, " b"]) -> UInt8[Tensor, "b size size 3"]:
        """The images at ``index``, in that order, on the device."""
        if self.images.device == self.device:
            return self.images[index.to(self.device)]
        batch = torch.empty(len(index), *self.images.shape[1:], dtype=torch.uint8, device=self.device)
        for image, row in zip(batch, index.tolist(), strict=True):
            image.copy_(self.images[row], non_blocking=True)
        return batch


def resident(images: ImageSet, device: torch.device, *, share: float = 0.5) -> ImageSet:
    """Cached images in memory: the device's if they fit into ``share`` of what is free, else pinned, else as is.

    >>> import numpy as np
    >>> pixels = Cached(np.zeros((1, 8, 8, 3), dtype=np.uint8), torch.ones(1))
    >>> images = ImageSet(pixels, torch.tensor([0]), ("a",), ("1.png",))
    >>> resident(images, torch.device("cpu")) is images
    True
    """
    pixels = images.pixels
    if device.type != "cuda" or not isinstance(pixels, Cached):
        return images
    device = torch.empty(0, device=device).device  # cuda is cuda:0, or whichever is the current one
    shape, needed = pixels.images.shape, pixels.images.nbytes
    if needed <= share * torch.cuda.mem_get_info(device)[0]:
        memory = torch.empty(shape, dtype=torch.uint8, device=device)
    elif 2 ** needed.bit_length() <= 0.5 * _free_memory():  # pinned memory comes in powers of two
        memory = torch.empty(shape, dtype=torch.uint8, pin_memory=True)
    else:
        return images
    for rows in torch.arange(len(memory)).split(CHUNK):
        memory[rows[0] : rows[-1] + 1] = pixels.load(rows).to(memory.device)
    return replace(images, pixels=Resident(memory, pixels.aspect, device))


def _free_memory() -> int:
    """Bytes of main memory that can be had; zero where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)
