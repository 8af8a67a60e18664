"""The network f: backbone, pooling, dropout and one linear layer map an image to a point in R^d."""

import importlib.util
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from divconq.checks import did_you_mean, shown
from divconq.io.safetensors_files import check_safetensors, load_backbone

Pooling = Literal["avg", "max", "avgmax"]
TIMM_POOLING: dict[Pooling, str] = {"avg": "avg", "max": "max", "avgmax": "catavgmax"}
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RGB = tuple[float, float, float]


class SmallNet(nn.Sequential):
    """A small network for the demo, fast on a CPU: four strided convolutions with group normalisation.

    >>> SmallNet()(torch.zeros(2, 3, 64, 64)).shape
    torch.Size([2, 160])
    """

    num_features = 160

    def __init__(self) -> None:
        widths = (3, 32, 64, 112, self.num_features)
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [
                nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False),
                nn.GroupNorm(8, after),
                nn.ReLU(inplace=True),
            ]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Embedder(nn.Module):
    """f(x) = W dropout(pool(backbone(x))) + b for images with values in [0, 1].

    The model normalises the colours itself, so a saved model needs only pixels. With ``freeze_batchnorm``, BatchNorm
    keeps its running statistics; its weights still train. A trained model has a ``transform``, which makes its input
    from an image, and refuses images of another size.

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
        dropout: float = 0.01,
        mean: RGB = IMAGENET_MEAN,
        std: RGB = IMAGENET_STD,
        freeze_batchnorm: bool = True,
    ) -> None:
        super().__init__()
        self.backbone, self.dropout, self.head = backbone, nn.Dropout(dropout), nn.Linear(features, dim)
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


def make_model(
    backbone: str,
    dim: int,
    *,
    pretrained: bool = False,
    weights: Path | None = None,
    pooling: Pooling = "avg",
    dropout: float = 0.01,
    mean: RGB | None = None,
    std: RGB | None = None,
    freeze_batchnorm: bool = True,
) -> Embedder:
    """Return an ``Embedder`` with a timm backbone, or with the backbone ``small``.

    The backbone loads the local ``.safetensors`` file ``weights`` if given, else timm's download if ``pretrained``.
    ``mean`` and ``std`` default to the metadata of the file, else to those of the backbone.
    """
    check_backbone(backbone, pooling, pretrained=pretrained, weights=weights)
    if backbone == "small":
        network, features, own_mean, own_std = _small()
    else:
        network, features, own_mean, own_std = _timm(backbone, pooling, pretrained and weights is None)
    if weights is not None:
        metadata = load_backbone(network, weights)
        own_mean, own_std = _colour(metadata, "mean", own_mean), _colour(metadata, "std", own_std)
    return Embedder(
        network,
        features,
        dim,
        dropout=dropout,
        mean=mean or own_mean,
        std=std or own_std,
        freeze_batchnorm=freeze_batchnorm,
    )


def check_backbone(backbone: str, pooling: Pooling, *, pretrained: bool, weights: Path | None) -> None:
    """Raise ValueError for a backbone that cannot be built, or a weights file that is missing. Builds nothing."""
    if weights is not None:
        check_safetensors(weights)
    if backbone != "small":
        _check_timm(backbone)
        return
    if pooling != "avg":
        raise ValueError(f"pooling of the backbone 'small' must be 'avg', got {pooling!r}; use --pooling avg")
    if pretrained and weights is None:
        raise ValueError("the backbone 'small' has no pretrained weights; use --no-pretrained")


def _small() -> tuple[nn.Module, int, RGB, RGB]:
    return SmallNet(), SmallNet.num_features, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)


def _check_timm(backbone: str) -> None:
    import timm

    if not timm.is_model(backbone.split(".")[0]):
        raise ValueError(
            f"unknown backbone {shown(backbone)}: use 'small' or a model of timm (timm.list_models()), or load a "
            f"module that registers yours with --import FILE.py{did_you_mean(backbone, ['small', *timm.list_models()])}"
        )


def _timm(backbone: str, pooling: Pooling, pretrained: bool) -> tuple[nn.Module, int, RGB, RGB]:
    import timm

    try:
        network = timm.create_model(
            backbone, pretrained=pretrained, num_classes=0, global_pool=TIMM_POOLING[pooling]
        )
    except Exception as error:
        if not pretrained:
            raise ValueError(
                f"timm could not build {backbone!r} with pooling {pooling!r}: {error}"
            ) from error
        raise ValueError(
            f"the pretrained weights of {backbone!r} could not be downloaded ({type(error).__name__}: {error}); "
            "use a local file with --backbone-weights FILE.safetensors, or start without weights by --no-pretrained"
        ) from error
    settings = getattr(network, "pretrained_cfg", {})
    with torch.no_grad():  # measures the width of the output
        features = network.eval()(torch.zeros(1, *settings.get("input_size", (3, 224, 224)))).shape[1]
    return (
        network,
        features,
        cast(RGB, tuple(settings.get("mean") or IMAGENET_MEAN)),
        cast(RGB, tuple(settings.get("std") or IMAGENET_STD)),
    )


def _colour(metadata: dict[str, str], name: str, default: RGB) -> RGB:
    if name not in metadata:
        return default
    try:
        red, green, blue = map(float, metadata[name].split(","))
    except ValueError:
        raise ValueError(
            f"the file's {name} must be three numbers, got {metadata[name]!r}; give --{name} R G B"
        ) from None
    return red, green, blue


def import_file(path: Path) -> None:
    """Execute a Python file once per process. It may register backbones or add rows to tables such as ``LOSSES``."""
    if not path.is_file():
        raise ValueError(f"--import: there is no file {path}; name a Python file")
    spec = importlib.util.spec_from_file_location(f"divconq_import_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"--import: {path} is not a Python file; its name must end in .py")
    if getattr(sys.modules.get(spec.name), "__file__", None) == spec.origin:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[spec.name]
        raise ValueError(
            f"--import: {path} fails with {type(error).__name__}: {error}; check that python {path} runs"
        ) from error
