"""Losses on unit vectors: ``loss(embeddings, labels)`` returns a scalar.

To add a loss, write one file with its class and add one line to ``LOSSES``. A module that you name with ``--import``
may add a line as well: ``LOSSES["mine"] = MyLoss`` makes ``--loss mine`` work.

An anchor counts only if the batch holds another image of its class and an image of another class. Without such an
anchor the built-in losses on pairs are 0 and still have a gradient.

A loss may ask for more with a class attribute. The default of the keyword argument must leave it a loss of two
arguments, because code of your own may call it so.

=========================  =============================================================================================
class attribute            keyword argument of ``forward``
=========================  =============================================================================================
``takes_mask = True``      ``mask`` (d,), or None: the mask of the space of this batch. A loss with learned vectors
                           (proxies, class centres) p compares the embeddings with ``normalize(p * mask)``. They then
                           lie in the same subspace; without, part of each lies where no embedding can be.
=========================  =============================================================================================

The mask is that of the cluster of the batch, or that of the conquered space in fine-tuning. It is all ones as long as
there is one cluster. A loss of pytorch-metric-learning receives no mask.
"""

import inspect
from collections.abc import Mapping

import torch
from torch import nn

from divconq.losses.construction import accepted_arguments, check_arguments, check_types, construct, try_loss
from divconq.losses.external import Mined, external_loss, external_miner
from divconq.losses.margin import MarginLoss
from divconq.losses.multi_similarity import MultiSimilarityLoss
from divconq.losses.npairs import NPairsLoss
from divconq.losses.proxy_anchor import ProxyAnchorLoss
from divconq.losses.soft_triplet import SoftTripletLoss
from divconq.losses.triplet import TripletLoss

__all__ = [
    "MarginLoss",
    "TripletLoss",
    "SoftTripletLoss",
    "NPairsLoss",
    "MultiSimilarityLoss",
    "ProxyAnchorLoss",
    "LOSSES",
    "make_loss",
    "check_loss",
]

LOSSES: dict[str, type[nn.Module]] = {
    "margin": MarginLoss,
    "triplet": TripletLoss,
    "soft_triplet": SoftTripletLoss,
    "npairs": NPairsLoss,
    "multi_similarity": MultiSimilarityLoss,
    "proxy_anchor": ProxyAnchorLoss,
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


def check_loss(
    name: str,
    arguments: Mapping[str, object] = {},
    *,
    dim: int,
    per_class: int | None = None,
    miner: str | None = None,
    miner_arguments: Mapping[str, object] = {},
) -> None:
    """Build a loss for two classes and try it on a small batch. Raise ValueError if it cannot be trained with.

    This needs no data, and leaves the random generator of torch as it was.

    >>> check_loss("triplet", {"alpha": 0.1}, dim=8)
    """
    with torch.random.fork_rng(devices=()):
        loss = make_loss(
            name, arguments, num_classes=2, dim=dim, miner=miner, miner_arguments=miner_arguments
        )
    given = {**arguments, **{f"miner.{key}": value for key, value in miner_arguments.items()}}
    try_loss(name, loss, given, dim, per_class=min(per_class or 4, 64))


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _listed_loss(name: str, arguments: Mapping[str, object], num_classes: int, dim: int) -> nn.Module:
    arguments, accepted = dict(arguments), accepted_arguments(LOSSES[name])
    if name == "margin":  # learn_beta replaces the argument num_classes, which is known here
        switch = inspect.Parameter("learn_beta", inspect.Parameter.KEYWORD_ONLY, default=False)
        accepted = {p.name: p for p in (switch if p.name == "num_classes" else p for p in accepted.values())}
    check_arguments(name, arguments, accepted)
    check_types(f"the loss {name}", arguments, accepted)
    if arguments.pop("learn_beta", False):
        arguments["num_classes"] = num_classes
    return construct(name, LOSSES[name], arguments, num_classes=num_classes, dim=dim)
