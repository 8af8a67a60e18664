"""A plain training loop for comparison: DataLoader workers, torchvision augmentation, an eager network."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

from divconq.accel.device import cpus
from divconq.bench.timing import timed
from divconq.data.batches.augmentation import ANGLE, BLURS, HOLE, HOLES, SHIFT, Augmentation
from divconq.data.batches.transforms import gain_and_offset
from divconq.losses import MarginLoss
from divconq.model import Embedder

PREFETCH = 2  # batches that each worker prepares, the default of DataLoader


def plain_rates(
    model: Embedder,
    files: Sequence[Path],
    labels: Int64[Tensor, " n"],
    changes: Augmentation,
    *,
    size: int,
    resize: int,
    batch: int,
    device: torch.device,
    batches: int,
    rounds: int,
) -> list[float]:
    """Return images per second of training on ``batches`` batches in each round, with one worker per CPU.

    Prefetched batches are used up before the clock starts.
    """
    workers = cpus()
    view = transforms(changes, size=size, resize=resize, mean=model.mean.flatten(), std=model.std.flatten())
    warm_up = PREFETCH * workers + 3
    total = (warm_up + rounds * batches) * batch
    generator = torch.Generator().manual_seed(0)
    images = Files(files, labels, view)
    loader = DataLoader(
        images,
        batch,
        sampler=RandomSampler(images, replacement=True, num_samples=total, generator=generator),
        num_workers=workers,
        prefetch_factor=PREFETCH,
        pin_memory=device.type == "cuda",
        persistent_workers=True,
        generator=generator,
    )
    loop = PlainLoop(model, device)
    with tf32_products():
        coming = iter(loader)

        def run(count: int) -> float:
            losses = [loop.step(*next(coming)) for _ in range(count)]
            return float(losses[-1])

        run(warm_up)
        return [batches * batch / timed(partial(run, batches), device)[0] for _ in range(rounds)]


class PlainLoop:
    """Eager training in full precision, channels first, with the margin loss and Adam."""

    def __init__(self, model: Embedder, device: torch.device, lr: float = 1e-5) -> None:
        self.device = device
        self.network = nn.Sequential(model.backbone, model.dropout, model.head).to(device).train()
        for module in self.network.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        self.loss, self.adam = MarginLoss(), torch.optim.Adam(self.network.parameters(), lr=lr)

    def step(self, x: Float[Tensor, "b 3 s s"], labels: Int64[Tensor, " b"]) -> Float[Tensor, ""]:
        """Train on one batch and return the loss without reading it from the device."""
        x, labels = x.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)
        loss: Tensor = self.loss(F.normalize(self.network(x)), labels)
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        return loss.detach()


class Files(Dataset[tuple[Tensor, int]]):
    """Image files that are decoded and augmented on access."""

    def __init__(self, files: Sequence[Path], labels: Int64[Tensor, " n"], view: Any) -> None:  # noqa: ANN401
        self.files, self.labels, self.view = files, labels.tolist(), view

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        from PIL import Image

        with Image.open(self.files[i]) as image:
            return self.view(image.convert("RGB")), self.labels[i]


def transforms(
    changes: Augmentation, *, size: int, resize: int, mean: Float[Tensor, " 3"], std: Float[Tensor, " 3"]
) -> Any:  # noqa: ANN401
    """Return torchvision transforms that do the same as an augmentation.

    >>> from PIL import Image
    >>> none = transforms(Augmentation(), size=8, resize=9, mean=torch.zeros(3), std=torch.ones(3))
    >>> none(Image.new("RGB", (12, 10))).shape
    torch.Size([3, 8, 8])
    """
    from torchvision import transforms as tv

    c, degrees = changes, torch.tensor(ANGLE).rad2deg().item()
    crops = {
        "random_resized": [tv.RandomResizedCrop(size, scale=c.crop_scale)],
        "random": [tv.Resize(resize), tv.RandomCrop(size)],
        "central": [tv.Resize(resize), tv.CenterCrop(size)],
    }
    separate = (
        (c.rotate, tv.RandomRotation(degrees)),
        (c.shift, tv.RandomAffine(0, translate=(SHIFT, SHIFT))),
    )
    maybe = [
        (c.flip, tv.RandomHorizontalFlip(1.0)),
        *(((c.rotate, tv.RandomAffine(degrees, translate=(SHIFT, SHIFT))),) if c.together else separate),
        (c.blur, box_blur),
        (0.0 if c.added_brightness else c.jitter, tv.ColorJitter(*c.strength)),
        (c.grey, tv.Grayscale(3)),
        (1.0, tv.ToTensor()),
        (c.cutout, partial(cut_holes, fixed=c.fixed_holes)),
        (c.jitter if c.added_brightness else 0.0, partial(add_brightness, strength=c.strength)),
    ]
    applied = [tv.RandomApply([change], p) if p < 1 else change for p, change in maybe if p]
    return tv.Compose([*crops[c.crop], *applied, tv.Normalize(mean.tolist(), std.tolist())])


def box_blur(image: Any) -> Any:  # noqa: ANN401
    """Blur a PIL image with a box of random side."""
    from PIL import ImageFilter

    side = BLURS[int(torch.randint(len(BLURS), ()))]
    return image.filter(ImageFilter.BoxBlur(side // 2))


def cut_holes(x: Float[Tensor, "c h w"], *, fixed: bool = False) -> Float[Tensor, "c h w"]:
    """Cut black rectangles of random or fixed size out of an image.

    >>> cut_holes(torch.ones(3, 8, 8)).shape
    torch.Size([3, 8, 8])
    """
    side = x.shape[1]
    for _ in range(int(torch.randint(1, HOLES + 1, ()))):
        height, width = (round(HOLE * side) if fixed else int(u * HOLE * side) for u in torch.rand(2))
        top, left = int(torch.randint(side - height + 1, ())), int(torch.randint(side - width + 1, ()))
        x[:, top : top + height, left : left + width] = 0
    return x


def add_brightness(
    x: Float[Tensor, "c h w"], strength: tuple[float, float, float, float]
) -> Float[Tensor, "c h w"]:
    """Multiply an image by a random contrast, then add a random brightness.

    >>> add_brightness(torch.full((3, 8, 8), 0.5), (0.0, 0.0, 0.0, 0.0)).unique()
    tensor([0.5000])
    """
    b, c = (2 * torch.rand(2) - 1) * torch.tensor(strength[:2])
    return gain_and_offset(x[None], 1 + c[None], b[None])[0]


@contextmanager
def tf32_products() -> Iterator[None]:
    """Multiply float32 matrices in TF32 inside the block; convolutions use TF32 by default.

    >>> with tf32_products():
    ...     (torch.ones(1, 2) @ torch.ones(2, 1)).dtype
    torch.float32
    """
    matmul: Any = torch.backends.cuda.matmul
    renamed = hasattr(matmul, "fp32_precision")  # since torch 2.9, which refuses the old name
    name, value = ("fp32_precision", "tf32") if renamed else ("allow_tf32", True)
    before = getattr(matmul, name)
    try:
        setattr(matmul, name, value)
        yield
    finally:
        setattr(matmul, name, before)
