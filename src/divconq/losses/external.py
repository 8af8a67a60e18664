"""Losses and miners of pytorch-metric-learning, by class name and keyword arguments."""

import inspect
from collections.abc import Collection, Mapping
from typing import Literal

from jaxtyping import Float, Int64
from torch import Tensor, nn

from divconq.checks import did_you_mean
from divconq.losses.construction import accepted_arguments, check_arguments, construct

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
    """A loss on the pairs or triplets that a miner selects: ``loss(z, labels, miner(z, labels))``.

    >>> from pytorch_metric_learning import losses, miners
    >>> Mined(losses.ContrastiveLoss(), miners.BatchHardMiner())
    Mined(ContrastiveLoss, BatchHardMiner)
    """

    def __init__(self, loss: nn.Module, miner: nn.Module) -> None:
        super().__init__()
        self.loss = loss
        self.miner = miner

    def forward(self, embeddings: Float[Tensor, "n d"], labels: Int64[Tensor, " n"]) -> Float[Tensor, ""]:
        """Return the loss of the batch."""
        loss: Tensor = self.loss(embeddings, labels, self.miner(embeddings, labels))
        return loss

    def __repr__(self) -> str:
        return f"Mined({type(self.loss).__name__}, {type(self.miner).__name__})"


def external_loss(
    name: str, arguments: Mapping[str, object], *, num_classes: int, dim: int, listed: Collection[str] = ()
) -> nn.Module:
    """Return the loss of pytorch-metric-learning called ``name``. An error also suggests the ``listed`` names.

    A loss that requires the number of classes or the embedding size receives them.

    >>> external_loss("ProxyNCALoss", {"softmax_scale": 2}, num_classes=5, dim=8).proxies.shape
    torch.Size([5, 8])
    """
    cls = class_named("loss", name, listed)
    check_arguments(name, arguments, accepted_arguments(cls))
    return construct(name, cls, arguments, num_classes=num_classes, embedding_size=dim, descriptors_dim=dim)


def external_miner(name: str, arguments: Mapping[str, object]) -> nn.Module:
    """Return the miner of pytorch-metric-learning called ``name``.

    >>> external_miner("MultiSimilarityMiner", {"epsilon": 0.2}).epsilon
    0.2
    """
    cls = class_named("miner", name)
    check_arguments(name, arguments, accepted_arguments(cls))
    return construct(name, cls, arguments)


def class_named(kind: Literal["loss", "miner"], name: str, listed: Collection[str] = ()) -> type[nn.Module]:
    """Return the class of pytorch-metric-learning called ``name``. An error also suggests the ``listed`` names.

    >>> class_named("loss", "CircleLoss").__name__
    'CircleLoss'
    """
    try:
        from pytorch_metric_learning import losses, miners
    except ImportError as error:
        none_of = f"is none of {', '.join(listed)}, so it " if listed else ""
        raise ValueError(
            f"{kind} '{name}' {none_of}needs pytorch-metric-learning, which is not installed; "
            f"run pip install 'divconq[pml]'{did_you_mean(name, listed)}"
        ) from error
    or_listed = f"{', '.join(listed)} or " if listed else ""
    if name in _UNSUITABLE:
        raise ValueError(
            f"{name} of pytorch-metric-learning {_UNSUITABLE[name]}, so it cannot be chosen by name; "
            f"choose a {kind} that takes embeddings and their labels"
        )
    module = losses if kind == "loss" else miners
    classes = (value for value in vars(module).values() if inspect.isclass(value))
    found = {value.__name__: value for value in classes if issubclass(value, nn.Module)}
    if name not in found:
        choices = [*listed, *sorted(found.keys() - _UNSUITABLE)]
        raise ValueError(
            f"there is no {kind} '{name}'; use {or_listed}the exact name of a class of {module.__name__}"
            f"{did_you_mean(name, choices)}"
        )
    return found[name]
