"""Decoded images where a GPU reaches them fastest: in its own memory, else in pinned memory, else where they are."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from divconq.data.dataset import Chosen, ImageSet, InMemory, Pixels
from divconq.data.images.cache import Cached

SHARE = 0.5  # of the memory that is free
ROWS = 1024  # images copied at once


@dataclass(frozen=True)
class Pinned:
    """Images in pinned memory, which the GPU ``device`` reads by itself, each batch straight into its own.

    >>> Pinned(torch.zeros(4, 8, 8, 3, dtype=torch.uint8), torch.ones(4), torch.device("cpu")).size
    8
    """

    images: UInt8[Tensor, "n size size 3"]
    aspect: Float[Tensor, " n"]
    device: torch.device

    @property
    def size(self) -> int:
        """The side of the square."""
        return self.images.shape[1]

    def load(self, index: Int64[Tensor, " b"]) -> UInt8[Tensor, "b size size 3"]:
        """The images at ``index``, in that order, on the device; it does not wait for them."""
        batch = torch.empty(len(index), *self.images.shape[1:], dtype=torch.uint8, device=self.device)
        for image, row in zip(batch, index.tolist(), strict=True):
            image.copy_(self.images[row], non_blocking=True)
        return batch


def resident(sets: Sequence[ImageSet], device: torch.device, *, share: float = SHARE) -> list[ImageSet]:
    """The same image sets, each moved into the memory of the GPU ``device`` if there is room.

    The first sets come first. Those that do not fit into ``share`` of what is free are kept in pinned memory, if
    they fit there; images that are decoded whenever they are asked for stay as they are, and all do on a CPU.

    >>> images = ImageSet(InMemory(torch.zeros(1, 8, 8, 3, dtype=torch.uint8)), torch.tensor([0]), ("a",), ("1.png",))
    >>> resident([images], torch.device("cpu"))[0] is images
    True
    """
    if device.type != "cuda":
        return list(sets)
    on_device, pinned = share * torch.cuda.mem_get_info(device)[0], share * _free_memory()
    moved = []
    for images in sets:
        pixels, needed = images.pixels, len(images) * images.pixels.size**2 * 3
        if not _is_decoded(pixels):
            moved.append(images)
        elif needed <= on_device:
            on_device -= needed
            moved.append(replace(images, pixels=InMemory(_copy(pixels, device=device), pixels.aspect)))
        elif 2 ** needed.bit_length() <= pinned:  # pinned memory comes in powers of two
            pinned -= 2 ** needed.bit_length()
            moved.append(
                replace(images, pixels=Pinned(_copy(pixels, pin_memory=True), pixels.aspect, device))
            )
        else:
            moved.append(images)
    return moved


def _is_decoded(pixels: Pixels) -> bool:
    return (
        _is_decoded(pixels.source) if isinstance(pixels, Chosen) else isinstance(pixels, (Cached, InMemory))
    )


def _copy(pixels: Pixels, **where: Any) -> UInt8[Tensor, "n size size 3"]:  # noqa: ANN401
    copy = torch.empty(len(pixels.aspect), pixels.size, pixels.size, 3, dtype=torch.uint8, **where)
    for rows in torch.arange(len(copy)).split(ROWS):
        copy[rows[0] : rows[-1] + 1] = pixels.load(rows)
    return copy


def _free_memory() -> int:
    """Bytes of main memory that can be had; zero where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)
