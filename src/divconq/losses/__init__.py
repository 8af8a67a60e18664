"""Losses on unit vectors: ``loss(embeddings, labels)`` is a scalar.

An anchor takes part only if the batch holds another image of its class and an image of another class;
without any such anchor a loss built in is exactly 0 and still has a gradient.
"""

from collections.abc import Mapping

from torch import nn

from divconq.losses.external import (
    Mined,
    accepted_arguments,
    check_arguments,
    construct,
    external_loss,
    external_miner,
)
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
    """One of ``LOSSES``, or any loss and miner of pytorch-metric-learning by class name.

    ``margin`` takes ``learn_beta=True`` here, for one learned beta a class.

    >>> make_loss("soft-triplet", num_classes=100, dim=512)
    SoftTripletLoss()
    >>> make_loss("ContrastiveLoss", {"neg_margin": 0.8}, num_classes=100, dim=512, miner="BatchHardMiner")
    Mined(ContrastiveLoss, BatchHardMiner)
    """
    if miner is None and miner_arguments:
        raise ValueError(
            f"miner arguments {dict(miner_arguments)} were given without a miner; name one or leave them out"
        )
    ours = {_plain(key): key for key in LOSSES}.get(_plain(name))
    if ours is None:
        loss = external_loss(name, arguments, num_classes=num_classes, dim=dim, ours=LOSSES)
        return loss if miner is None else Mined(loss, external_miner(miner, miner_arguments))
    if miner is not None:
        raise ValueError(
            f"the loss {ours} picks its own negatives and takes no miner, got {miner}; "
            "leave the miner out, or choose a loss of pytorch-metric-learning such as TripletMarginLoss"
        )
    return _our_loss(ours, arguments, num_classes)


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _our_loss(name: str, arguments: Mapping[str, object], num_classes: int) -> nn.Module:
    accepted = list(accepted_arguments(LOSSES[name]))
    if name == "margin":
        accepted = ["alpha", "beta", "learn_beta", "sampling_dim", "apart", "even"]
    check_arguments(name, arguments, accepted)
    for key, value in arguments.items():
        switch = key in ("learn_beta", "apart", "even")
        if not isinstance(value, (int, float)) or isinstance(value, bool) != switch:
            wanted = "true or false" if switch else "a number"
            raise ValueError(f"{key} of the loss {name} must be {wanted}, got {value!r}")
    given = dict(arguments)
    if given.pop("learn_beta", False):
        given["num_classes"] = num_classes
    return construct(name, LOSSES[name], given)
