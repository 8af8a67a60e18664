"""The table of mask kinds. It does not import torch, so checking settings is fast."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class MaskKind:
    """A kind of masks: the module with its function ``split``, or the function itself.

    ``split(parents, *, noise, seed)`` takes the (k, d) masks in use and returns the (2k, d) masks of their children:
    rows 2i and 2i + 1 are the children of row i. All masks start as ones.
    """

    function: str | Callable[..., Any]
    trained: bool = False
    """Whether the masks are parameters. If so, L_s reduces their overlap."""
    disjoint: bool = False
    """Whether the masks share no dimension. If so, d must be at least K_max."""
    rotates: bool = False
    """Whether the masks are given to the clusters anew in every epoch. Such masks are disjoint and not trained."""

    def load(self) -> Callable[..., Any]:
        """Return the function."""
        if isinstance(self.function, str):
            loaded: Callable[..., Any] = import_module(f"divconq.masks.{self.function}").split
            return loaded
        return self.function


MASKS: dict[str, MaskKind] = {
    "learned": MaskKind("learned", trained=True),
    "fixed": MaskKind("blocks", disjoint=True),
    "rotating": MaskKind("blocks", disjoint=True, rotates=True),
    "none": MaskKind("whole"),
}
