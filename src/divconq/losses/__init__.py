"""Losses on unit vectors: ``loss(embeddings, labels)`` returns a scalar.

To add a loss, write one file with its class and add one line to ``LOSSES``. A module that you name with ``--import``
may add a line as well: ``LOSSES["mine"] = MyLoss`` makes ``--loss mine`` work.

An anchor counts only if the batch holds another image of its class and an image of another class. Without such an
anchor the built-in losses are 0 and still have a gradient.
"""

import inspect
from collections.abc import Mapping

from torch import nn

from divconq.losses.construction import accepted_arguments, check_arguments, construct
from divconq.losses.external import Mined, external_loss, external_miner
from divconq.losses.margin import MarginLoss
from divconq.losses.npairs import NPairsLoss
from divconq.losses.soft_triplet import SoftTripletLoss
from divconq.losses.triplet import TripletLoss

__all__ = ["MarginLoss", "TripletLoss", "SoftTripletLoss", "NPairsLoss", "LOSSES", "make_loss"]

LOSSES: dict[str, type[nn.Module]] = {
    "margin": MarginLoss,
    "triplet": TripletLoss,
    "soft_triplet": SoftTripletLoss,
    "npairs": NPairsLoss,
}


def make_loss(
    name: str,
    arguments: Mapping[str, object] = {},
    *,
    num_classes: int,
    dim: int,
    miner: str | None = None,
    miner_arguments: Mapping[str, object] = {},
) -> nn.Module:
    """Return a loss of ``LOSSES``, or any loss of pytorch-metric-learning by class name, with or without a miner.

    A loss that needs ``num_classes`` or ``dim`` receives them. ``margin`` takes ``learn_beta=True`` to learn one beta
    per class.

    >>> make_loss("soft-triplet", num_classes=100, dim=512)
    SoftTripletLoss()
    >>> make_loss("ContrastiveLoss", {"neg_margin": 0.8}, num_classes=100, dim=512, miner="BatchHardMiner")
    Mined(ContrastiveLoss, BatchHardMiner)
    """
    if miner is None and miner_arguments:
        raise ValueError(
            f"miner arguments {dict(miner_arguments)} were given without a miner; name one or leave them out"
        )
    listed = {_plain(key): key for key in LOSSES}.get(_plain(name))
    if listed is None:
        loss = external_loss(name, arguments, num_classes=num_classes, dim=dim, listed=LOSSES)
        return loss if miner is None else Mined(loss, external_miner(miner, miner_arguments))
    if miner is not None:
        raise ValueError(
            f"the loss {listed} selects its own negatives and takes no miner, got {miner}; "
            "leave the miner out, or choose a loss of pytorch-metric-learning such as TripletMarginLoss"
        )
    return _listed_loss(listed, arguments, num_classes, dim)


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _listed_loss(name: str, arguments: Mapping[str, object], num_classes: int, dim: int) -> nn.Module:
    arguments, accepted = dict(arguments), accepted_arguments(LOSSES[name])
    if name == "margin":  # learn_beta replaces the argument num_classes, which is known here
        switch = inspect.Parameter("learn_beta", inspect.Parameter.KEYWORD_ONLY, default=False)
        accepted = {p.name: p for p in (switch if p.name == "num_classes" else p for p in accepted.values())}
    check_arguments(name, arguments, accepted)
    for key, value in arguments.items():
        _check_type(f"{key} of the loss {name}", value, accepted[key].default)
    if arguments.pop("learn_beta", False):
        arguments["num_classes"] = num_classes
    return construct(name, LOSSES[name], arguments, num_classes=num_classes, dim=dim)


def _check_type(name: str, value: object, default: object) -> None:
    """Raise ValueError if the default is a number or a bool and the value is not."""
    number, switch = isinstance(default, (int, float)), isinstance(default, bool)
    if number and (not isinstance(value, (int, float)) or isinstance(value, bool) != switch):
        raise ValueError(f"{name} must be {'true or false' if switch else 'a number'}, got {value!r}")
