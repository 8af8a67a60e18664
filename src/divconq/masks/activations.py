"""The table of mask activations. It does not import torch, so checking settings is fast.

An entry m of a mask at 0 has a gradient of 0 or more in most losses, with any activation. Distances and inner products
of masked embeddings depend on m through its square, so their derivative by m is 0 at m = 0. That of the overlap L_s is
0 or more. Such an entry stays at 0 with ``relu``, ``projected`` and ``straight_through`` alike. Only a loss that
compares embeddings with vectors of its own, such as the proxies of ProxyAnchorLoss, can bring it back, with the last
two. With ``softplus`` an entry never reaches 0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class MaskActivation:
    """How a learned mask is computed from its parameter s: a module with two functions, or the functions themselves.

    ``forward(s)`` returns the mask, and ``inverse(mask)`` a parameter with this mask. Both work entry by entry.
    """

    functions: str | tuple[Callable[..., Any], Callable[..., Any]]
    projects: bool = False
    """Whether entries of s below 0 are set to 0 after every step of the optimiser."""

    def load(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return ``forward`` and ``inverse``."""
        if isinstance(self.functions, str):
            module = import_module(f"divconq.masks.{self.functions}")
            return module.forward, module.inverse
        return self.functions


MASK_ACTIVATIONS: dict[str, MaskActivation] = {
    "relu": MaskActivation("relu"),
    "projected": MaskActivation("projected", projects=True),
    "softplus": MaskActivation("softplus"),
    "straight_through": MaskActivation("straight_through"),
}
