"""Deep metric learning by divide and conquer, with any loss and any backbone.

>>> import divconq
>>> divconq.preset("cub").division.k_max
4
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from divconq.config import Config
    from divconq.divide_and_conquer import DivideAndConquer
    from divconq.division import Partition, divide
    from divconq.evaluation import nmi, retrieval_scores
    from divconq.losses import make_loss
    from divconq.masks import Masks
    from divconq.objective import Objective
    from divconq.presets import preset
    from divconq.runs.exported import load_model

# Names are imported on first use, so the command line starts fast.
_HOME = {
    "Config": "config",
    "Partition": "division",
    "divide": "division",
    "nmi": "evaluation",
    "retrieval_scores": "evaluation",
    "make_loss": "losses",
    "Masks": "masks",
    "load_model": "runs.exported",
    "Objective": "objective",
    "DivideAndConquer": "divide_and_conquer",
    "preset": "presets",
}

__all__ = [
    "Config",
    "DivideAndConquer",
    "Masks",
    "Objective",
    "Partition",
    "divide",
    "load_model",
    "make_loss",
    "nmi",
    "preset",
    "retrieval_scores",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in _HOME:
        raise AttributeError(f"module 'divconq' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"divconq.{_HOME[name]}"), name)
