"""One training step: embed a batch, compute the loss in its subspace, update the parameters.

On a GPU, network and loss are compiled and the whole step is captured as one CUDA graph; the result is the same up
to rounding. If the loss cannot be captured, for example because it reads from the device, or if several
processes share the batch, only the network is captured.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Literal, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from divconq.accel.graphs import Captured, first_line, recovery, untuned
from divconq.distributed import average_gradients, gather, size
from divconq.distributed.collectives import own_randomness
from divconq.losses import MarginLoss, MultiSimilarityLoss, NPairsLoss, ProxyAnchorLoss
from divconq.model import Embedder
from divconq.objective import Objective
from divconq.training.averaging import WeightAverages

# The triplet losses sort, which takes a minute to compile.
COMPILED_LOSSES = (MarginLoss, NPairsLoss, MultiSimilarityLoss, ProxyAnchorLoss)

Outcome: TypeAlias = tuple[Tensor, Tensor]
Way: TypeAlias = Literal["whole", "network", "plain"]


class TrainingStep:
    """Trains on a batch of images, labels and cluster. Cluster None means the conquered space.

    Returns the loss and whether all embeddings are finite, as tensors on the device. With several processes, each
    passes its share of the images and the labels of the whole batch. With ``fast``, the step tries to capture
    everything, then only the network, then nothing; ``way`` names the method in use. ``averages`` follow the weights.

    >>> from divconq.masks import Masks
    >>> from divconq.model import SmallNet
    >>> model, masks = Embedder(SmallNet(), 160, 8), Masks(8, k_max=1)
    >>> step = TrainingStep(model, Objective(MarginLoss(), masks), torch.optim.Adam(model.parameters()))
    >>> loss, finite = step(torch.rand(4, 3, 32, 32), torch.tensor([0, 0, 1, 1]), torch.tensor(0))
    >>> step.way, bool(finite)
    ('plain', True)
    """

    def __init__(
        self,
        model: Embedder,
        objective: Objective,
        optimizer: Optimizer,
        *,
        bf16: bool = False,
        fast: bool = False,
        averages: WeightAverages | None = None,
    ) -> None:
        self.averages = averages or WeightAverages(None, {})
        self.objective, self.optimizer, self.device = objective, optimizer, model.mean.device
        self.model, self.network = model, Network(model, bf16)
        fastest: Way = "whole" if size() == 1 else "network"
        self.way: Way = fastest if fast and self.device.type == "cuda" else "plain"
        self.captured: dict[tuple[bool, bool], Callable[..., Outcome]] = {}

    def __call__(self, x: Tensor, labels: Tensor, cluster: Tensor | None) -> Outcome:
        """Train on one batch."""
        while self.way != "plain":
            try:
                return self._fast(x, labels, cluster)
            except (torch.cuda.OutOfMemoryError, ConnectionError):
                raise  # a slower method would not help
            except Exception as error:
                self._fall_back(error)
        return self._step(partial(self._forward_shared, self.network), x, labels, cluster)

    def _step(self, forward: Callable[..., Outcome], x: Tensor, *about: Tensor | None) -> Outcome:
        loss, finite = forward(x, *about)
        self.optimizer.zero_grad()
        loss.backward()
        average_gradients(p for group in self.optimizer.param_groups for p in group["params"])
        self.optimizer.step()
        self.averages.update()
        return loss.detach(), finite

    def _forward_shared(
        self, network: Callable[[Tensor], Tensor], x: Tensor, labels: Tensor, cluster: Tensor | None = None
    ) -> Outcome:
        """Embed this process's share of the batch and compute the loss of the whole batch."""
        with own_randomness():
            f = network(x)
        return self._loss(gather(f, len(labels)), labels, cluster)

    def _loss(self, f: Tensor, labels: Tensor, cluster: Tensor | None) -> Outcome:
        return self.objective(f, labels, cluster), f.detach().isfinite().all()

    def _fast(self, x: Tensor, labels: Tensor, cluster: Tensor | None) -> Outcome:
        """Run the captured step. Each kind of step is captured once: cluster or none, backbone frozen or not."""
        rests = not next(self.model.backbone.parameters()).requires_grad
        kind = (cluster is None, rests)
        if kind not in self.captured:
            self.captured[kind] = self._capture_whole() if self.way == "whole" else self._capture_network(x)
        return self.captured[kind](x, labels) if cluster is None else self.captured[kind](x, labels, cluster)

    def _capture_whole(self) -> Callable[..., Outcome]:
        """Capture the step as one graph. Network and loss are compiled separately, so a new loss reuses the network."""
        self.network.compile(dynamic=False)
        loss_of = self._loss
        if isinstance(self.objective.loss, COMPILED_LOSSES):
            loss_of = torch.compile(loss_of, dynamic=False, options=untuned())

        def forward(x: Tensor, labels: Tensor, cluster: Tensor | None = None) -> Outcome:
            return loss_of(self.network(x), labels, cluster)

        return Captured(partial(self._step, forward), self.device)  # type: ignore[return-value]

    def _capture_network(self, x: Tensor) -> Callable[..., Outcome]:
        """Capture the network as two graphs, forward and backward; the loss is not captured."""
        network = Network(self.model, self.network.bf16)
        network.forward = torch.compile(network.forward, dynamic=False)  # type: ignore[method-assign]
        with recovery(self.device):
            captured = torch.cuda.make_graphed_callables(network, (x.clone(),))  # replaces forward
        return partial(self._step, partial(self._forward_shared, cast(nn.Module, captured)))

    def _fall_back(self, error: Exception) -> None:
        """Switch to the next slower method and warn once."""
        self.captured.clear()
        reason = first_line(error)
        if self.way == "whole":
            self.way = "network"
            message = (
                f"the step cannot be captured as a whole ({reason}); the network is captured, the loss is not"
            )
        else:
            self.way = "plain"
            self.network = Network(self.model, self.network.bf16)
            message = f"the network cannot be compiled or captured ({reason}); training continues without, more slowly"
        warnings.warn(f"{message}. --compile off skips the attempt", stacklevel=3)


class Network(nn.Module):
    """The model in training precision.

    >>> from divconq.model import SmallNet
    >>> Network(Embedder(SmallNet(), 160, 8), bf16=True)(torch.rand(4, 3, 32, 32)).dtype
    torch.bfloat16
    """

    def __init__(self, model: Embedder, bf16: bool) -> None:
        super().__init__()
        self.model, self.bf16 = model, bf16

    def forward(self, x: Tensor) -> Tensor:
        """Return f(x) of a batch."""
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16, cache_enabled=False):
            f: Tensor = self.model(x)
            return f
