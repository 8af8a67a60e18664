"""GeM pooling: a power mean between average and maximum, with a learned exponent."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

SMALLEST = 1e-6  # smaller activations count as this; a power of zero has no gradient
FIRST_P = 3.0


class GeM(nn.Module):
    """Generalised mean pooling: (mean_hw max(x, 1e-6)^p)^(1/p) of each channel, with one trained p that starts at 3.

    p = 1 is average pooling of a map without negative values; a large p approaches max pooling. It is computed in
    float32 or better. ``flatten`` drops the two dimensions of the map.

    Reference: Radenovic, Tolias and Chum, Fine-tuning CNN image retrieval with no human annotation, TPAMI 2018.

    >>> round(GeM()(torch.tensor([[[[1.0, 2.0]]]])).item(), 4)  # ((1 + 8) / 2) ^ (1 / 3)
    1.651
    """

    def __init__(self, flatten: bool = True) -> None:
        super().__init__()
        self.p, self.flatten = nn.Parameter(torch.full((), FIRST_P)), flatten

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c *rest"]:
        """Return one number for each channel."""
        with torch.autocast(x.device.type, enabled=False):
            x = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
            x = x.clamp(min=SMALLEST)
            # x -> mean is homogeneous, so dividing by the maximum changes nothing, and no power overflows.
            largest = x.detach().amax((2, 3), keepdim=True)
            pooled = largest * (x / largest).pow(self.p).mean((2, 3), keepdim=True).pow(1 / self.p)
        return pooled.flatten(1) if self.flatten else pooled


def replace_pooling_(network: nn.Module, name: str) -> None:
    """Replace the average pooling of a timm model by GeM, in place.

    Raise ValueError if the model does not have exactly one pooling of a feature map (n, c, h, w).
    """
    found = [
        (path, module)
        for path, module in network.named_modules()
        if type(module).__name__ == "SelectAdaptivePool2d" and isinstance(module.pool, nn.AdaptiveAvgPool2d)
    ]
    if len(found) != 1:
        raise ValueError(
            f"pooling 'gem' needs a backbone that pools one feature map (n, c, h, w), and {name!r} has "
            f"{len(found) or 'no'} such pooling; use --pooling avg, or a convolutional backbone such as resnet50"
        )
    path, module = found[0]
    network.set_submodule(path, GeM(flatten=isinstance(module.flatten, nn.Flatten)))
