"""Adam or AdamW for the network. ``DivideAndConquer`` adds the masks and the loss as parameter groups."""

from typing import Any, Literal, cast

import torch
from torch import nn
from torch.optim import Adam, AdamW, Optimizer

from divconq.checks import shown

OPTIMIZERS: dict[str, type[Adam] | type[AdamW]] = {"adam": Adam, "adamw": AdamW}
MOMENTS = {"step", "exp_avg", "exp_avg_sq"}
NORMS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm2d,
    nn.LayerNorm,
    nn.GroupNorm,
)


def make_optimizer(
    network: nn.Module,
    *,
    lr: float,
    weight_decay: float,
    norm_weight_decay: float | None = None,
    head_lr_scale: float = 1.0,
    kind: Literal["adam", "adamw"] = "adam",
) -> Optimizer:
    """Return Adam or AdamW over the parameters of a network that require a gradient.

    ``norm_weight_decay`` is the weight decay of normalisation layers; None means ``weight_decay``.
    ``head_lr_scale`` multiplies the learning rate of ``network.head``.

    >>> adam = make_optimizer(nn.Linear(2, 4), lr=1e-5, weight_decay=1e-3)
    >>> [(group["name"], group["lr"]) for group in adam.param_groups]
    [('network', 1e-05)]
    """
    norms = [] if norm_weight_decay is None else _norm_parameters(network)
    head = [] if head_lr_scale == 1 else [*cast(nn.Module, network.head).parameters()]
    frozen = {parameter for parameter in network.parameters() if not parameter.requires_grad}
    norms = [parameter for parameter in norms if parameter not in frozen]
    separate = {*norms, *head, *frozen}
    rest = [parameter for parameter in network.parameters() if parameter not in separate]
    groups = [
        {"name": "network", "params": rest, "lr": lr, "weight_decay": weight_decay},
        {"name": "head", "params": head, "lr": lr * head_lr_scale, "weight_decay": weight_decay},
        {"name": "norms", "params": norms, "lr": lr, "weight_decay": norm_weight_decay},
    ]
    on_gpu = any(parameter.is_cuda for parameter in network.parameters())
    return OPTIMIZERS[kind](
        [group for group in groups if group["params"]], fused=on_gpu or None, capturable=on_gpu
    )


def _norm_parameters(network: nn.Module) -> list[nn.Parameter]:
    """Return the weights and biases of all normalisation layers."""
    return [
        parameter
        for module in network.modules()
        if isinstance(module, NORMS)
        for parameter in module.parameters(recurse=False)
    ]


def load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Restore the moments. All options, such as learning rates, keep their current values.

    Raise ValueError if the moments are not those of the optimiser's parameters.

    >>> adam = make_optimizer(nn.Linear(2, 4), lr=1e-5, weight_decay=1e-3)
    >>> load_optimizer(adam, adam.state_dict())
    """
    groups = [
        {**own, "params": saved["params"]}
        for saved, own in zip(state["param_groups"], optimizer.param_groups, strict=True)
    ]
    numbers = [number for group in groups for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    shapes = {number: parameter.shape for number, parameter in zip(numbers, parameters, strict=True)}
    moments = {
        number: {name: _checked_moment(name, moment, shapes[number]) for name, moment in of.items()}
        for number, of in state["state"].items()
    }  # from the CPU, torch moves each to its parameter; a step count would stay on the device it was saved from
    for of in moments.values():
        if of.keys() != MOMENTS:
            raise ValueError(
                f"Adam has {', '.join(sorted(MOMENTS))} for a parameter, got {', '.join(sorted(of))}"
            )
    optimizer.load_state_dict({"state": moments, "param_groups": groups})


def _checked_moment(name: str, moment: object, shape: torch.Size) -> torch.Tensor:
    """Return a moment on the CPU. Raise ValueError if it has another type or shape than that of its parameter."""
    shape = torch.Size() if name == "step" else shape
    if not isinstance(moment, torch.Tensor) or not moment.is_floating_point() or moment.shape != shape:
        raise ValueError(f"{name} of Adam must be a tensor of shape {tuple(shape)}, got {shown(moment)}")
    return moment.cpu()
