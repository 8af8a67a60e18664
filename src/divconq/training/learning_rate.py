"""The learning rate over the epochs: constant, cosine or in steps, after a linear warm-up."""

import math

import torch
from torch import Tensor
from torch.optim import Optimizer

from divconq.config import OptimisationConfig


def lr_factor(progress: float, settings: OptimisationConfig) -> float:
    """Return the factor of the learning rate after ``progress`` epochs, for example 2.5 in the middle of the third.

    With T epochs, of which w are warm-up, the factor at progress t is min(1, t / w) times

    - 1 (constant),
    - (1 + cos(pi (t - w) / (T - w))) / 2 from t = w on (cosine; Loshchilov and Hutter, 2017), or
    - ``lr_drop`` to the power of floor(t / ``lr_drop_every``) (step).

    >>> settings = OptimisationConfig(epochs=10, schedule="cosine", warmup_epochs=2)
    >>> [round(lr_factor(progress, settings), 2) for progress in (0, 1, 2, 6, 10)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    warmup = settings.warmup_epochs
    ramp = progress / warmup if progress < warmup else 1.0
    if settings.schedule == "step":
        return ramp * math.pow(settings.lr_drop, progress // settings.lr_drop_every)
    if settings.schedule == "cosine" and progress > warmup:
        share = min(1.0, (progress - warmup) / (settings.epochs - warmup))
        return (1 + math.cos(math.pi * share)) / 2
    return ramp


class LearningRate:
    """Sets the learning rates of an optimiser before each step: that of each group times ``lr_factor``.

    On a GPU the rates become tensors, which are filled in place: a captured step reads them in every replay, and
    nothing waits for the device. A constant rate without warm-up is never touched.

    >>> adam = torch.optim.Adam([torch.zeros(1, requires_grad=True)], lr=0.5)
    >>> rate = LearningRate(adam, OptimisationConfig(epochs=10, schedule="cosine"))
    >>> rate.set(progress=5.0); round(adam.param_groups[0]["lr"], 6)
    0.25
    """

    def __init__(self, optimizer: Optimizer, settings: OptimisationConfig) -> None:
        self.optimizer, self.settings = optimizer, settings
        self.constant = settings.schedule == "constant" and settings.warmup_epochs == 0
        self.base = [float(group["lr"]) for group in optimizer.param_groups]
        if self.constant:
            return
        for group, lr in zip(optimizer.param_groups, self.base, strict=True):
            device = group["params"][0].device
            if device.type == "cuda":
                group["lr"] = torch.tensor(lr, device=device)

    def set(self, progress: float) -> None:
        """Set the learning rates of the step that starts after ``progress`` epochs."""
        if self.constant:
            return
        factor = lr_factor(progress, self.settings)
        for group, base in zip(self.optimizer.param_groups, self.base, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(base * factor)
            else:
                group["lr"] = base * factor

    def logged(self, progress: float) -> dict[str, float]:
        """Return the learning rate of the first group for the log; empty if it is constant."""
        return {} if self.constant else {"lr": self.base[0] * lr_factor(progress, self.settings)}
