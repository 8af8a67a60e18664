"""An exponential moving average of the weights. The average embeds; training continues from the raw weights."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from divconq.checks import shown

STEPS = "steps"


class WeightAverages:
    """The average of all parameters of some modules over the steps of training.

    After step t = 0, 1, 2, ... the average a of a weight w becomes a + max(1 - decay, 9 / (10 + t)) (w - a). The
    decay thus grows from 0.1 to ``decay`` (as in TensorFlow's ExponentialMovingAverage), so that the first weights
    are soon forgotten. Buffers, such as the running statistics of BatchNorm, are not averaged.

    All values stay on the device and change in place, so ``update`` can be part of a captured step. With ``decay``
    None nothing is averaged.

    >>> layer = nn.Linear(1, 1, bias=False); _ = nn.init.zeros_(layer.weight)
    >>> averages = WeightAverages(0.5, {"model": layer})
    >>> _ = nn.init.ones_(layer.weight); averages.update()
    >>> with averages.applied():
    ...     round(layer.weight.item(), 6)
    0.9
    >>> layer.weight.item()
    1.0
    """

    def __init__(self, decay: float | None, modules: Mapping[str, nn.Module]) -> None:
        named = {} if decay is None else modules
        self.least = 1.0 if decay is None else 1 - decay  # the least share of the new weights
        self.weights: dict[str, Tensor] = {
            f"{prefix}.{name}": parameter.detach()
            for prefix, module in named.items()
            for name, parameter in module.named_parameters()
        }
        self.averages = {name: weight.clone() for name, weight in self.weights.items()}
        device = next((weight.device for weight in self.weights.values()), None)
        self.steps = torch.zeros((), dtype=torch.int64, device=device)

    def update(self) -> None:
        """Move the averages towards the weights. Called after every step of the optimiser."""
        if not self.weights:
            return
        share = (9 / (10 + self.steps)).clamp(min=self.least)
        change = torch._foreach_sub([*self.weights.values()], [*self.averages.values()])
        torch._foreach_mul_(change, share)
        torch._foreach_add_([*self.averages.values()], change)
        self.steps.add_(1)

    def restart(self, prefix: str = "") -> None:
        """Set the averages to the weights: all of them, or those of the module with this name.

        After a division, the average of the old masks says nothing about the new ones.
        """
        for name, average in self.averages.items():
            if name.startswith(prefix):
                average.copy_(self.weights[name])
        if not prefix:
            self.steps.zero_()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the averages in the place of the weights inside the block, in the same memory.

        Compiled and captured functions then use them too. The weights come back exactly, also after an error.
        """
        kept = {name: weight.clone() for name, weight in self.weights.items()}
        try:
            _copy(self.averages, self.weights)
            yield
        finally:
            _copy(kept, self.weights)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the averages by name, and the number of steps; empty if nothing is averaged."""
        return {**self.averages, STEPS: self.steps} if self.weights else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the averages. An empty state, of a run without them, starts them from the weights."""
        if not state:
            self.restart()
            return
        for name, own in self.state_dict().items():
            given = state.get(name)
            if not isinstance(given, Tensor) or given.shape != own.shape or given.dtype != own.dtype:
                raise ValueError(
                    f"the average of {name} must be {own.dtype} of shape {tuple(own.shape)}, got {shown(given)}"
                )
            own.copy_(given)


def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, value in source.items():
        target[name].copy_(value)
