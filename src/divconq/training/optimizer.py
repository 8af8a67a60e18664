"""Adam over groups: the network (its head and its normalisation apart, if wished), the masks, the loss's parameters."""

from typing import Any, cast

import torch
from torch import nn
from torch.optim import Adam, Optimizer

from divconq.masks import Masks

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
    masks: Masks,
    loss: nn.Module,
    *,
    lr: float,
    weight_decay: float,
    mask_lr_scale: float = 100.0,
    mask_weight_decay: float = 0.0,
    loss_lr_scale: float = 100.0,
    norm_weight_decay: float | None = None,
    head_lr_scale: float = 1.0,
) -> Adam:
    """Adam with the learning rates of the paper: the masks learn ``mask_lr_scale`` times faster.

    ``norm_weight_decay`` is that of normalisation layers' weights and biases; None: as that of the rest.
    ``head_lr_scale`` is for the network's ``head``, the new layer on top of one that is pretrained.

    >>> adam = make_optimizer(nn.Linear(2, 4), Masks(4, 2), nn.Identity(), lr=1e-5, weight_decay=1e-3)
    >>> [(group["name"], group["lr"]) for group in adam.param_groups]
    [('network', 1e-05), ('masks', 0.001)]
    """
    norms = [] if norm_weight_decay is None else _of_norms(network)
    head = [] if head_lr_scale == 1 else [*cast(nn.Module, network.head).parameters()]
    apart = {*norms, *head}
    rest = [parameter for parameter in network.parameters() if parameter not in apart]
    groups = [
        {"name": "network", "params": rest, "lr": lr, "weight_decay": weight_decay},
        {"name": "head", "params": head, "lr": lr * head_lr_scale, "weight_decay": weight_decay},
        {"name": "norms", "params": norms, "lr": lr, "weight_decay": norm_weight_decay},
        {
            "name": "masks",
            "params": [*masks.parameters()],
            "lr": lr * mask_lr_scale,
            "weight_decay": mask_weight_decay,
        },
        {"name": "loss", "params": [*loss.parameters()], "lr": lr * loss_lr_scale, "weight_decay": 0.0},
    ]
    on_gpu = any(parameter.is_cuda for parameter in network.parameters())
    return Adam([group for group in groups if group["params"]], fused=on_gpu or None, capturable=on_gpu)


def _of_norms(network: nn.Module) -> list[nn.Parameter]:
    """Weights and biases of the layers that normalise."""
    return [
        parameter
        for module in network.modules()
        if isinstance(module, NORMS)
        for parameter in module.parameters(recurse=False)
    ]


def load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Restore moments and settings; those that depend on the device stay as they are here.

    >>> adam = make_optimizer(nn.Linear(2, 4), Masks(4, 2), nn.Identity(), lr=1e-5, weight_decay=1e-3)
    >>> load_optimizer(adam, adam.state_dict())
    """
    groups = [
        {**saved, **{name: own[name] for name in ("fused", "capturable") if name in own}}
        for saved, own in zip(state["param_groups"], optimizer.param_groups, strict=True)
    ]
    moments = {
        number: {
            name: moment.cpu() if isinstance(moment, torch.Tensor) else moment for name, moment in of.items()
        }
        for number, of in state["state"].items()
    }  # from there each goes where its parameter is; a count of steps would stay on the device it was saved from
    optimizer.load_state_dict({"state": moments, "param_groups": groups})


def reset_moments(optimizer: Optimizer, masks: nn.Module) -> None:
    """Forget the moments of the masks, which a split has just replaced.

    >>> masks = Masks(4, 2)
    >>> adam = Adam(masks.parameters()); masks.conquer().sum().backward(); adam.step()
    >>> reset_moments(adam, masks); float(adam.state[masks.weight]["exp_avg"].abs().sum())
    0.0
    """
    for parameter in masks.parameters():
        for moment in optimizer.state.get(parameter, {}).values():
            if isinstance(moment, torch.Tensor):
                moment.zero_()
