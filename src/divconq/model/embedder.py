"""The network f: backbone, pooling, dropout and embedding layer map an image to a point in R^d."""

from typing import Any, Protocol, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from divconq.model.clml import CLMLHead

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RGB = tuple[float, float, float]


class Embedder(nn.Module):
    """f(x) = W dropout(pool(backbone(x))) + b for images with values in [0, 1].

    With ``components``, the embedding layer is a ``CLMLHead`` with that many linear layers.

    The model normalises the colours itself, so a saved model needs only pixels. With ``freeze_batchnorm``, BatchNorm
    keeps its running statistics; its weights still train. A trained model has a ``transform``, which makes its input
    from an image, and refuses images of another size.

    >>> from divconq.model import SmallNet
    >>> f = Embedder(SmallNet(), features=160, dim=8)
    >>> f(torch.rand(2, 3, 64, 64)).shape
    torch.Size([2, 8])
    """

    mean: Tensor
    std: Tensor
    transform: "Transform | None" = None

    def __init__(
        self,
        backbone: nn.Module,
        features: int,
        dim: int,
        *,
        components: int | None = None,
        dropout: float = 0.01,
        mean: RGB = IMAGENET_MEAN,
        std: RGB = IMAGENET_STD,
        freeze_batchnorm: bool = True,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.head: nn.Linear | CLMLHead
        if components is None:
            self.dropout, self.head = nn.Dropout(dropout), nn.Linear(features, dim)
        else:
            self.dropout, self.head = nn.Dropout(0.0), CLMLHead(features, dim, components, dropout)
        self.freeze_batchnorm = freeze_batchnorm
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1))

    def features(self, images: Float[Tensor, "n 3 h w"] | Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        """Return the pooled output of the backbone, the input of the head. Stored features are returned unchanged."""
        if self.transform is not None:
            _check_input(images, self.transform.image_size)
        elif images.ndim == 2:
            return images
        images = ((images - self.mean) / self.std).contiguous(memory_format=torch.channels_last)
        return cast(Tensor, self.backbone(images))

    def forward(self, images: Float[Tensor, "n 3 h w"] | Float[Tensor, "n c"]) -> Float[Tensor, "n d"]:
        """Return the raw embedding f(x) of images or of their stored features, before mask and normalisation."""
        return cast(Tensor, self.head(self.dropout(self.features(images))))

    def train(self, mode: bool = True) -> "Embedder":
        """Switch to training mode. Frozen BatchNorm stays in eval mode."""
        super().train(mode)
        if self.freeze_batchnorm:
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self

    @torch.no_grad()
    def fold_(self, mask: Float[Tensor, " d"]) -> "Embedder":
        """Multiply the conquered mask into the head, in place. The returned model needs no mask."""
        self.head.weight.mul_(mask[:, None])
        self.head.bias.mul_(mask)
        return self


class Transform(Protocol):
    """A function from an image to the input of a model."""

    @property
    def image_size(self) -> int:
        """Return the side of the square that the model sees, in pixels."""
        ...

    def __call__(self, image: Any) -> Tensor:  # noqa: ANN401
        """Return the image as a tensor."""
        ...


def _check_input(images: Tensor, side: int) -> None:
    """Raise ValueError unless the images are floats of the size that the model was trained for."""
    if not images.is_floating_point() or images.shape[-2:] != (side, side):
        height, width = images.shape[-2:]
        raise ValueError(
            f"the model takes images of {side} x {side} pixels as floats in [0, 1], got {width} x {height} of "
            f"{images.dtype}; make them with model.transform(image)"
        )
