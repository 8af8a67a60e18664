"""Losses on unit vectors: ``loss(embeddings, labels)`` returns a scalar.

To add a loss, write one file with its class and add one line to ``LOSSES``. A module that you name with ``--import``
may add a line as well: ``LOSSES["mine"] = MyLoss`` makes ``--loss mine`` work.

An anchor counts only if the batch holds another image of its class and an image of another class. Without such an
anchor the built-in losses on pairs are 0 and still have a gradient.

A loss may ask for more with a class attribute:

- ``takes_mask = True``: ``forward(embeddings, labels, *, mask=None)`` receives the mask (d,) of the space of the batch:
  that of its cluster, or the conquered one in fine-tuning. A loss with learned vectors p, such as proxies or class
  centres, compares the embeddings with ``normalize(p * mask)``, which lies in the same subspace; a part of p itself
  lies where no embedding of the batch can be.
- ``takes_keys = True``: ``forward(embeddings, labels, *, keys=None)`` receives ``Keys``, embeddings (m, d) and labels
  (m,) to compare the batch with, instead of with itself. ``--memory`` needs this. ``all_pairs`` and ``pair_masks``
  (``losses/pairwise.py``) return the (n, m) masks of the pairs; keys with the label ``EMPTY`` are in none.

With None, the loss is that of a batch on its own. Losses of pytorch-metric-learning receive neither.
"""

import inspect
from collections.abc import Mapping

import torch
from torch import nn

from divconq.checks import shown
from divconq.losses.construction import accepted_arguments, check_arguments, check_types, construct, try_loss
from divconq.losses.external import Mined, class_named, external_loss, external_miner
from divconq.losses.margin import MarginLoss
from divconq.losses.multi_similarity import MultiSimilarityLoss
from divconq.losses.npairs import NPairsLoss
from divconq.losses.proxy_anchor import ProxyAnchorLoss
from divconq.losses.soft_triplet import SoftTripletLoss
from divconq.losses.triplet import TripletLoss

# fmt: off
__all__ = [
    "MarginLoss", "TripletLoss", "SoftTripletLoss", "NPairsLoss", "MultiSimilarityLoss", "ProxyAnchorLoss",
    "LOSSES", "make_loss", "check_loss", "check_takes_keys", "with_settings",
]
# fmt: on

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
    listed = _listed_name(name)
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
    memory: int = 0,
) -> None:
    """Build a loss for two classes and try it on a small batch. Raise ValueError if it cannot be trained with.

    With a ``memory``, it must also take keys. This needs no data, and leaves the random generator of torch as it was.

    >>> check_loss("triplet", {"alpha": 0.1}, dim=8)
    """
    with torch.random.fork_rng(devices=()):
        loss = make_loss(
            name, arguments, num_classes=2, dim=dim, miner=miner, miner_arguments=miner_arguments
        )
    if memory:
        check_takes_keys(loss, name)
    given = {**arguments, **{f"miner.{key}": value for key, value in miner_arguments.items()}}
    try_loss(name, loss, given, dim, per_class=min(per_class or 4, 64))


def check_takes_keys(loss: object, name: str) -> None:
    """Raise ValueError if a loss cannot compare a batch with a memory.

    >>> check_takes_keys(MarginLoss(), "margin")
    """
    if not getattr(loss, "takes_keys", False):
        able = [key for key, cls in LOSSES.items() if getattr(cls, "takes_keys", False)]
        raise ValueError(
            f"memory needs a loss that compares a batch with past embeddings: {', '.join(able)}; got {name}; choose "
            "one of these, or set --memory 0"
        )


def with_settings(name: str, arguments: Mapping[str, object], **settings: float | None) -> dict[str, object]:
    """Return the arguments of a loss with those of its settings, such as ``beta``, that are not None.

    Raise ValueError if the loss has no such argument, or if it is given twice with two values.

    >>> with_settings("margin", {"sampling_dim": 128}, alpha=None, beta=0.9)
    {'sampling_dim': 128, 'beta': 0.9}
    """
    given = {key: value for key, value in settings.items() if value is not None}
    for key, value in given.items():
        accepted = _accepted(name)
        if key not in accepted:
            raise ValueError(
                f"the loss {name} has no argument '{key}', it accepts {', '.join(accepted) or 'none'}; leave out "
                f"--{key}, or choose another --loss"
            )
        if arguments.get(key, value) != value:
            raise ValueError(
                f"{key} of the loss {name} is given twice, as --{key} {value} and as --loss.{key} "
                f"{shown(arguments[key])}; leave one of them out"
            )
    return {**arguments, **given}


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _listed_name(name: str) -> str | None:
    return {_plain(key): key for key in LOSSES}.get(_plain(name))


def _accepted(name: str) -> dict[str, inspect.Parameter]:
    """Return the arguments that a user may give to a loss."""
    listed = _listed_name(name)
    accepted = accepted_arguments(LOSSES[listed] if listed else class_named("loss", name, LOSSES))
    if listed == "margin":  # learn_beta replaces the argument num_classes, which is known here
        switch = inspect.Parameter("learn_beta", inspect.Parameter.KEYWORD_ONLY, default=False)
        accepted = {p.name: p for p in (switch if p.name == "num_classes" else p for p in accepted.values())}
    return accepted


def _listed_loss(name: str, arguments: Mapping[str, object], num_classes: int, dim: int) -> nn.Module:
    arguments, accepted = dict(arguments), _accepted(name)
    check_arguments(name, arguments, accepted)
    check_types(f"the loss {name}", arguments, accepted)
    if arguments.pop("learn_beta", False):
        arguments["num_classes"] = num_classes
    return construct(name, LOSSES[name], arguments, num_classes=num_classes, dim=dim)
