"""Move decoded images to GPU memory, or to pinned memory if they do not fit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from divconq.data.dataset import ImageSet, ImageStore, InMemory, Subset
from divconq.data.images.cache import Cached

MEMORY_SHARE = 0.5  # of the free memory
ROWS = 1024  # images copied at once


@dataclass(frozen=True)
class Pinned:
    """Images in pinned memory, from which the GPU ``device`` copies each batch.

    >>> Pinned(torch.zeros(4, 8, 8, 3, dtype=torch.uint8), torch.ones(4), torch.device("cpu")).size
    8
    """

    images: UInt8[Tensor, "n size size 3"]
    aspect: Float[Tensor, " n"]
    device: torch.device

    @property
    def size(self) -> int:
        """Return the side of the square in pixels."""
        return self.images.shape[1]

    def load(self, index: Int64[Tensor, " b"]) -> UInt8[Tensor, "b size size 3"]:
        """Return the images at ``index`` on the device, in that order, without waiting for the copy."""
        batch = torch.empty(len(index), *self.images.shape[1:], dtype=torch.uint8, device=self.device)
        for image, row in zip(batch, index.tolist(), strict=True):
            image.copy_(self.images[row], non_blocking=True)
        return batch


def move_to_device(
    sets: Sequence[ImageSet], device: torch.device, *, share: float = MEMORY_SHARE
) -> list[ImageSet]:
    """Return the image sets with their images in the memory of the GPU ``device``, where they fit.

    The sets are moved in order, into ``share`` of the free GPU memory. A set that does not fit goes to pinned
    memory, or is not moved. Images that are decoded on every load are not moved, and on a CPU none are.

    >>> images = ImageSet(InMemory(torch.zeros(1, 8, 8, 3, dtype=torch.uint8)), torch.tensor([0]), ("a",), ("1.png",))
    >>> move_to_device([images], torch.device("cpu"))[0] is images
    True
    """
    if device.type != "cuda":
        return list(sets)
    on_device, pinned = share * torch.cuda.mem_get_info(device)[0], share * _free_memory()
    moved = []
    for images in sets:
        store, needed = images.store, len(images) * images.store.size**2 * 3
        needed_pinned = 2 ** needed.bit_length()  # pinned memory is allocated in powers of two
        if _is_decoded(store) and needed <= on_device:
            on_device -= needed
            store = InMemory(_copy(store, device=device), store.aspect)
        elif _is_decoded(store) and needed_pinned <= pinned:
            pinned -= needed_pinned
            store = Pinned(_copy(store, pin_memory=True), store.aspect, device)
        moved.append(images if store is images.store else replace(images, store=store))
    return moved


def _is_decoded(store: ImageStore) -> bool:
    return _is_decoded(store.source) if isinstance(store, Subset) else isinstance(store, (Cached, InMemory))


def _copy(store: ImageStore, **where: Any) -> UInt8[Tensor, "n size size 3"]:  # noqa: ANN401
    copy = torch.empty(len(store.aspect), store.size, store.size, 3, dtype=torch.uint8, **where)
    for rows in torch.arange(len(copy)).split(ROWS):
        copy[rows[0] : rows[-1] + 1] = store.load(rows)
    return copy


def _free_memory() -> int:
    """Return the free main memory in bytes; 0 if the system does not report it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)
