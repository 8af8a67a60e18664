"""Fold frozen BatchNorm into the convolution before it: the same function with one memory pass less.

BatchNorm with fixed statistics is y = s (x - m) + b with s = w / sqrt(v + eps). Applied to the output of a
convolution, it equals a convolution with the weight s W and the bias b - s m. Every step computes these from the
parameters of the modules, which train as before. dL/dw and dL/db follow from the gradient of the convolution, so its
output is not stored. Module names and state dicts do not change.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from divconq.accel.fold_op import fold

CLOSE = 1e-2  # largest relative difference by rounding, for example to TF32 in a deep network


@torch.no_grad()
def fold_batchnorm_(network: nn.Module, example: Tensor) -> int:
    """Fold every BatchNorm of ``network`` that follows a convolution; return their number.

    The BatchNorms must stay in eval mode. If the output for ``example`` changes, nothing is folded.

    >>> network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    >>> fold_batchnorm_(network, torch.rand(1, 3, 8, 8))
    1
    """
    modes = {module: module.training for module in network.modules()}
    network.eval()
    before, pairs = _trace(network, example)
    for convolution, norm in pairs:
        _fold(convolution, norm)
    change = (network(example) - before).abs().max()
    for module, training in modes.items():
        module.training = training
    close = max(CLOSE, 16 * torch.finfo(before.dtype).eps)
    if pairs and not change <= close * before.abs().max():
        unfold_batchnorm_(network)
        return 0
    return len(pairs)


def unfold_batchnorm_(network: nn.Module) -> None:
    """Undo ``fold_batchnorm_``.

    >>> network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    >>> fold_batchnorm_(network, torch.rand(1, 3, 8, 8)); unfold_batchnorm_(network)
    1
    """
    for module in network.modules():
        if getattr(vars(module).get("forward"), "folded", False):
            del module.forward


def _trace(network: nn.Module, example: Tensor) -> tuple[Tensor, list[tuple[nn.Conv2d, nn.BatchNorm2d]]]:
    """Return the output, and each convolution whose output only a BatchNorm uses, if both run once."""
    calls: Counter[nn.Module] = Counter()
    made: list[tuple[nn.Conv2d, Tensor]] = []
    pairs: list[tuple[nn.Conv2d, nn.BatchNorm2d, Tensor]] = []
    uses = _Uses()

    def after_convolution(module: nn.Conv2d, inputs: object, output: Tensor) -> None:
        calls[module] += 1
        made.append((module, output))
        uses.count[id(output)] = 0

    def before_norm(module: nn.BatchNorm2d, inputs: tuple[Tensor, ...]) -> None:
        calls[module] += 1
        pairs.extend((convolution, module, output) for convolution, output in made if output is inputs[0])

    handles = []
    for module in network.modules():
        if "forward" in vars(module):
            continue  # already folded, or replaced by other code
        if type(module) is nn.Conv2d and module.padding_mode == "zeros":
            handles.append(module.register_forward_hook(after_convolution))
        elif _is_plain_norm(module):
            handles.append(module.register_forward_pre_hook(before_norm))
    try:
        with uses:
            output: Tensor = network(example)
    finally:
        for handle in handles:
            handle.remove()
    return output, [
        (convolution, norm)
        for convolution, norm, between in pairs
        if calls[convolution] == calls[norm] == uses.count[id(between)] == 1
    ]


class _Uses(TorchDispatchMode):
    """Counts how many operations use each tensor in ``count``, by its id."""

    def __init__(self) -> None:
        super().__init__()
        self.count: dict[int, int] = {}

    def __torch_dispatch__(
        self,
        operation: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        for x in tree_leaves((args, kwargs)):
            if id(x) in self.count:
                self.count[id(x)] += 1
        return operation(*args, **kwargs)


def _is_plain_norm(module: nn.Module) -> bool:
    """Return whether a module is BatchNorm with weights and statistics, or timm's with a fused activation."""
    plain = type(module) is nn.BatchNorm2d or type(module).__name__ == "BatchNormAct2d"
    return plain and isinstance(module, nn.BatchNorm2d) and module.affine and module.track_running_stats


def _fold(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
    c, n = convolution, norm
    rest: list[Any] = [getattr(norm, name) for name in ("drop", "act") if hasattr(norm, name)]

    def convolve(x: Tensor) -> Tensor:
        assert n.running_mean is not None
        assert n.running_var is not None
        low = torch.is_autocast_enabled(x.device.type)
        dtype = torch.get_autocast_dtype(x.device.type) if low else c.weight.dtype
        weight, bias = fold(c.weight, c.bias, n.weight, n.bias, n.running_mean, n.running_var, n.eps, dtype)
        return F.conv2d(x, weight, bias, c.stride, c.padding, c.dilation, c.groups)

    def activate(x: Tensor) -> Tensor:
        for module in rest:
            x = module(x)
        return x

    for module, forward in ((convolution, convolve), (norm, activate)):
        forward.folded = True  # type: ignore[attr-defined]
        module.forward = forward  # type: ignore[method-assign, assignment]
