"""The table of division strategies. It does not import torch, so checking settings is fast."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Strategy:
    """A division strategy: the module with its function ``divide``, or the function itself.

    ``divide(x, partition, labels, *, k_max, seed, groups)`` returns the next ``Partition``. It is a pure function of
    its arguments.
    """

    function: str | Callable[..., Any]
    needs_embeddings: bool = False
    """Whether ``x`` must hold the embeddings of all training images."""
    needs_groups: bool = False
    """Whether ``groups`` must hold the super-category of every image."""
    at_once: bool = False
    """Whether the first division comes before the first epoch and makes all ``k_max`` clusters."""

    def load(self) -> Callable[..., Any]:
        """Return the function."""
        if isinstance(self.function, str):
            loaded: Callable[..., Any] = import_module(f"divconq.division.{self.function}").divide
            return loaded
        return self.function


DIVISIONS: dict[str, Strategy] = {
    "progressive": Strategy("progressive", needs_embeddings=True),
    "flat": Strategy("flat", needs_embeddings=True, at_once=True),
    "random": Strategy("random_halves"),  # drawn once: later divisions keep the clusters, or split them
    "random-again": Strategy("random_again"),  # drawn again at every division
    "labels": Strategy("super_categories", needs_groups=True),
}
