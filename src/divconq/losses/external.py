"""Losses and miners of pytorch-metric-learning, by class name and keyword arguments."""

import difflib
import inspect
from collections.abc import Collection, Iterable, Mapping
from typing import Literal

from jaxtyping import Float, Int64
from torch import Tensor, nn

_UNSUITABLE = {
    "BaseMetricLossFunction": "is a base class",
    "GenericPairLoss": "is a base class",
    "BaseLossWrapper": "is a base class",
    "EmbeddingRegularizerMixin": "is a base class",
    "WeightRegularizerMixin": "is a base class",
    "BaseMiner": "is a base class",
    "CrossBatchMemory": "wraps another loss",
    "MultipleLosses": "wraps other losses",
    "SelfSupervisedLoss": "wraps another loss and takes two views instead of labels",
    "ManifoldLoss": "takes no labels",
    "VICRegLoss": "takes two views instead of labels",
    "EmbeddingsAlreadyPackagedAsTriplets": "takes batches ordered as triplets instead of labels",
}


class Mined(nn.Module):
    """``loss(z, labels, miner(z, labels))``: a loss on the pairs or triplets that a miner picks.

    >>> from pytorch_metric_learning import losses, miners
    >>> Mined(losses.ContrastiveLoss(), miners.BatchHardMiner())
    Mined(ContrastiveLoss, BatchHardMiner)
    """

    def __init__(self, loss: nn.Module, miner: nn.Module) -> None:
        super().__init__()
        self.loss = loss
        self.miner = miner

    def forward(self, embeddings: Float[Tensor, "n d"], labels: Int64[Tensor, " n"]) -> Float[Tensor, ""]:
        """Compute the loss of the batch."""
        loss: Tensor = self.loss(embeddings, labels, self.miner(embeddings, labels))
        return loss

    def __repr__(self) -> str:
        return f"Mined({type(self.loss).__name__}, {type(self.miner).__name__})"


def external_loss(
    name: str, arguments: Mapping[str, object], *, num_classes: int, dim: int, ours: Collection[str] = ()
) -> nn.Module:
    """Make the loss of pytorch-metric-learning called ``name``; ``ours`` are other names to suggest.

    Where it cannot do without the number of classes or the size of an embedding, it is told.

    >>> external_loss("ProxyNCALoss", {"softmax_scale": 2}, num_classes=5, dim=8).proxies.shape
    torch.Size([5, 8])
    """
    cls = _class_named("loss", name, ours)
    accepted = accepted_arguments(cls)
    check_arguments(name, arguments, accepted)
    sizes = {"num_classes": num_classes, "embedding_size": dim, "descriptors_dim": dim}
    asked = {
        key: size
        for key, size in sizes.items()
        if key in accepted and accepted[key].default is inspect.Parameter.empty
    }
    return construct(name, cls, {**asked, **arguments})


def external_miner(name: str, arguments: Mapping[str, object]) -> nn.Module:
    """Make the miner of pytorch-metric-learning called ``name``.

    >>> external_miner("MultiSimilarityMiner", {"epsilon": 0.2}).epsilon
    0.2
    """
    cls = _class_named("miner", name)
    check_arguments(name, arguments, accepted_arguments(cls))
    return construct(name, cls, arguments)


def accepted_arguments(cls: type[nn.Module]) -> dict[str, inspect.Parameter]:
    """List the keyword arguments of a class, with those that it hands on to its bases.

    >>> from divconq.losses.margin import MarginLoss
    >>> list(accepted_arguments(MarginLoss))
    ['alpha', 'beta', 'num_classes', 'sampling_dim', 'apart', 'even']
    """
    accepted: dict[str, inspect.Parameter] = {}
    for base in cls.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        accepted |= {p.name: p for p in parameters if p.kind in by_name and p.name not in accepted}
        if all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in parameters):
            break
    # Every pair loss of pytorch-metric-learning sets this one for its base class.
    accepted.pop("mat_based_loss", None)
    return accepted


def check_arguments(name: str, arguments: Iterable[str], accepted: Collection[str]) -> None:
    """Refuse an argument that is not accepted, and name the nearest that is.

    >>> check_arguments("triplet", {"alhpa": 0.1}, ["alpha"])
    Traceback (most recent call last):
    ValueError: triplet has no argument 'alhpa', did you mean 'alpha'? It accepts alpha
    """
    for argument in arguments:
        if argument not in accepted:
            raise ValueError(
                f"{name} has no argument '{argument}'{_suggestion(argument, accepted)} "
                f"It accepts {', '.join(accepted) or 'none'}"
            )


def construct(name: str, cls: type[nn.Module], arguments: Mapping[str, object]) -> nn.Module:
    """``cls(**arguments)``; what the class objects to becomes a ``ValueError``.

    >>> from divconq.losses.triplet import TripletLoss
    >>> construct("triplet", TripletLoss, {"alpha": 0.1}).alpha
    0.1
    """
    try:
        return cls(**arguments)
    except (TypeError, ValueError, AssertionError, NotImplementedError) as error:
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items()) or "no arguments"
        reason = str(error) or type(error).__name__
        raise ValueError(f"{name} could not be made with {given}: {reason}") from error


def _suggestion(name: str, choices: Iterable[str]) -> str:
    spelling = {choice.lower(): choice for choice in choices}
    nearest = difflib.get_close_matches(name.lower(), spelling, n=1)
    return f", did you mean '{spelling[nearest[0]]}'?" if nearest else "."


def _class_named(kind: Literal["loss", "miner"], name: str, ours: Collection[str] = ()) -> type[nn.Module]:
    known = f"The losses built in are {', '.join(ours)}. " if ours else ""
    try:
        from pytorch_metric_learning import losses, miners
    except ImportError as error:
        raise ValueError(
            f"{kind} '{name}' was looked for in pytorch-metric-learning, which is not installed; "
            f"pip install pytorch-metric-learning. {known}".rstrip()
        ) from error
    if name in _UNSUITABLE:
        raise ValueError(
            f"{name} of pytorch-metric-learning {_UNSUITABLE[name]}, so it cannot be chosen by name; "
            f"choose a {kind} that takes embeddings and their labels"
        )
    module = losses if kind == "loss" else miners
    classes = (value for value in vars(module).values() if inspect.isclass(value))
    found = {value.__name__: value for value in classes if issubclass(value, nn.Module)}
    if name not in found:
        choices = [*ours, *sorted(found.keys() - _UNSUITABLE)]
        raise ValueError(
            f"there is no {kind} '{name}'{_suggestion(name, choices)} "
            f"{known}Any class of {module.__name__} works by its exact name"
        )
    return found[name]
