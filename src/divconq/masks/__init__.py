"""Divide the embedding into subspaces (paper, section 3.1.2).

Importing this package does not import torch: ``Masks`` is loaded when it is first used.
"""

from typing import TYPE_CHECKING, Any

from divconq.masks.activations import MASK_ACTIVATIONS, MaskActivation
from divconq.masks.kinds import MASKS, MaskKind

if TYPE_CHECKING:
    from divconq.masks.subspaces import Masks

__all__ = ["MASKS", "MASK_ACTIVATIONS", "MaskActivation", "MaskKind", "Masks"]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name != "Masks":
        raise AttributeError(f"module 'divconq.masks' has no attribute {name!r}")
    from divconq.masks.subspaces import Masks

    return Masks
