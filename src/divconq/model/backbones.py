"""The backbones: models of timm and the network ``small``, with their pooling and their colours."""

import importlib.util
import sys
from itertools import pairwise
from pathlib import Path
from typing import Literal, cast

import torch
from torch import nn

from divconq.checks import did_you_mean, shown
from divconq.io.safetensors_files import check_safetensors
from divconq.model.embedder import IMAGENET_MEAN, IMAGENET_STD, RGB
from divconq.model.gem import GeM, replace_pooling_

Pooling = Literal["avg", "max", "avgmax", "gem"]
TIMM_POOLING: dict[Pooling, str] = {"avg": "avg", "max": "max", "avgmax": "catavgmax", "gem": "avg"}


class SmallNet(nn.Sequential):
    """A small network for the demo, fast on a CPU: four strided convolutions with group normalisation.

    >>> SmallNet()(torch.zeros(2, 3, 64, 64)).shape
    torch.Size([2, 160])
    """

    num_features = 160

    def __init__(self, pooling: Pooling = "avg") -> None:
        widths = (3, 32, 64, 112, self.num_features)
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [
                nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False),
                nn.GroupNorm(8, after),
                nn.ReLU(inplace=True),
            ]
        pool = GeM(flatten=False) if pooling == "gem" else nn.AdaptiveAvgPool2d(1)
        super().__init__(*layers, pool, nn.Flatten())


def check_backbone(backbone: str, pooling: Pooling, *, pretrained: bool, weights: Path | None) -> None:
    """Raise ValueError for a backbone that cannot be built, or a weights file that is missing. Builds nothing."""
    if weights is not None:
        check_safetensors(weights)
    if backbone != "small":
        _check_timm(backbone)
        return
    if pooling not in ("avg", "gem"):
        raise ValueError(
            f"pooling of the backbone 'small' must be 'avg' or 'gem', got {pooling!r}; use --pooling avg"
        )
    if pretrained and weights is None:
        raise ValueError("the backbone 'small' has no pretrained weights; use --no-pretrained")


def make_small(pooling: Pooling) -> tuple[nn.Module, int, RGB, RGB]:
    """Return the backbone ``small``, the number of its features, and its colour mean and deviation."""
    return SmallNet(pooling), SmallNet.num_features, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)


def _check_timm(backbone: str) -> None:
    import timm

    if not timm.is_model(backbone.split(".")[0]):
        raise ValueError(
            f"unknown backbone {shown(backbone)}: use 'small' or a model of timm (timm.list_models()), or load a "
            f"module that registers yours with --import FILE.py{did_you_mean(backbone, ['small', *timm.list_models()])}"
        )


def make_timm(backbone: str, pooling: Pooling, pretrained: bool) -> tuple[nn.Module, int, RGB, RGB]:
    """Return a model of timm, the number of its features, and its colour mean and deviation."""
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
    if pooling == "gem":
        replace_pooling_(network, backbone)
    settings = getattr(network, "pretrained_cfg", {})
    with torch.no_grad():  # measures the width of the output
        features = network.eval()(torch.zeros(1, *settings.get("input_size", (3, 224, 224)))).shape[1]
    return (
        network,
        features,
        cast(RGB, tuple(settings.get("mean") or IMAGENET_MEAN)),
        cast(RGB, tuple(settings.get("std") or IMAGENET_STD)),
    )


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
