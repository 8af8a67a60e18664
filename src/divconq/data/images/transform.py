"""The test view of one image: what the network sees in an evaluation."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from divconq.data.batches.views import stored_side, test_view
from divconq.data.images.decoding import open_image, square, upright_size
from divconq.data.images.pixels import check_pixels

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class Transform:
    """Turns an image into the tensor that the network sees in an evaluation: upright, resized, the central crop.

    It takes the path of an image file, or a PIL image. ``decode_size`` is the short side of the images in training
    before they became squares, by default ``resize``. Values are RGB in [0, 1]; the model normalises the colours.

    >>> from PIL import Image
    >>> Transform(image_size=48, resize=56)(Image.new("RGB", (60, 40), "red"))[:, 0, 0]
    tensor([1., 0., 0.])
    """

    image_size: int
    resize: int
    decode_size: int | None = None

    def __call__(self, image: "str | Path | Image.Image") -> Float[Tensor, "3 size size"]:
        """Return the test view of an image."""
        if isinstance(image, str | Path):
            with open_image(Path(image)) as opened:
                return self._view(opened)
        if getattr(image, "tile", None) and getattr(image, "filename", ""):
            return self(image.filename)  # type: ignore[attr-defined]  # not decoded yet: leave it so
        check_pixels(image)
        image.load()
        return self._view(image)

    def _view(self, image: "Image.Image") -> Float[Tensor, "3 size size"]:
        width, height = upright_size(image)
        aspect = torch.tensor([width]) / torch.tensor([height])
        pixels = torch.from_numpy(square(image, stored_side(self.decode_size or self.resize)).copy())
        return test_view(pixels[None], aspect, self.image_size, self.resize, self.decode_size)[0]
