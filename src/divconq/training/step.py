"""One step of training: embed a batch, compare it in its subspace, follow the gradient.

On a GPU the same step is made fast in ways that do not change what it computes: network and loss are compiled,
and all of it is captured as one CUDA graph. A loss that cannot be captured, since it reads from the device, say,
runs by itself beside a captured network; so does that of several processes, each of which embeds its share.
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
from divconq.losses import MarginLoss, NPairsLoss
from divconq.model import Embedder
from divconq.objective import Objective

COMPILED_LOSSES = (MarginLoss, NPairsLoss)  # the triplet losses sort, which compiles for a minute

Outcome: TypeAlias = tuple[Tensor, Tensor]
Way: TypeAlias = Literal["whole", "network", "plain"]


class TrainingStep:
    """Trains on a batch with its labels and its cluster (None: in the conquered space).

    Of several processes each gives its own share of the images, and the labels of all.
    Returns the loss, and whether all embeddings were finite, without reading them from the device. ``fast``
    captures the whole step, or else the network alone, or else runs it plainly; ``way`` says which it is.

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
    ) -> None:
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
                raise  # a slower way needs more, or all the others as well
            except Exception as error:
                self._fall_back(error)
        return self._step(partial(self._forward_shared, self.network), x, labels, cluster)

    def _step(self, forward: Callable[..., Outcome], x: Tensor, *about: Tensor | None) -> Outcome:
        loss, finite = forward(x, *about)
        self.optimizer.zero_grad()
        loss.backward()
        average_gradients(p for group in self.optimizer.param_groups for p in group["params"])
        self.optimizer.step()
        return loss.detach(), finite

    def _forward_shared(
        self, network: Callable[[Tensor], Tensor], x: Tensor, labels: Tensor, cluster: Tensor | None = None
    ) -> Outcome:
        """The same of a batch that is shared out: every process embeds its images and compares all of them."""
        with own_randomness():
            f = network(x)
        return self._compare(gather(f, len(labels)), labels, cluster)

    def _compare(self, f: Tensor, labels: Tensor, cluster: Tensor | None) -> Outcome:
        return self.objective(f, labels, cluster), f.detach().isfinite().all()

    def _fast(self, x: Tensor, labels: Tensor, cluster: Tensor | None) -> Outcome:
        """Run the step the way it was captured for batches of this kind."""
        rests = not next(self.model.backbone.parameters()).requires_grad
        kind = (cluster is None, rests)
        if kind not in self.captured:
            self.captured[kind] = self._capture_whole() if self.way == "whole" else self._capture_network(x)
        return self.captured[kind](x, labels) if cluster is None else self.captured[kind](x, labels, cluster)

    def _capture_whole(self) -> Callable[..., Outcome]:
        """The step as one graph, network and loss compiled apart: with another loss the network is compiled already."""
        self.network.compile(dynamic=False)
        compare = self._compare
        if isinstance(self.objective.loss, COMPILED_LOSSES):
            compare = torch.compile(compare, dynamic=False, options=untuned())

        def forward(x: Tensor, labels: Tensor, cluster: Tensor | None = None) -> Outcome:
            return compare(self.network(x), labels, cluster)

        return Captured(partial(self._step, forward), self.device)  # type: ignore[return-value]

    def _capture_network(self, x: Tensor) -> Callable[..., Outcome]:
        """The network as two graphs, forward and backward, the rest as it is."""
        network = Network(self.model, self.network.bf16)
        network.forward = torch.compile(network.forward, dynamic=False)  # type: ignore[method-assign]
        with recovery(self.device):
            captured = torch.cuda.make_graphed_callables(network, (x.clone(),))  # in the place of forward
        return partial(self._step, partial(self._forward_shared, cast(nn.Module, captured)))

    def _fall_back(self, error: Exception) -> None:
        """Take the next slower way, and say so once."""
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
            message = f"the network cannot be compiled or captured ({reason}); training runs without, slower"
        warnings.warn(f"{message}. --compile off leaves out the attempt", stacklevel=3)


class Network(nn.Module):
    """The model in the precision of training.

    >>> from divconq.model import SmallNet
    >>> Network(Embedder(SmallNet(), 160, 8), bf16=True)(torch.rand(4, 3, 32, 32)).dtype
    torch.bfloat16
    """

    def __init__(self, model: Embedder, bf16: bool) -> None:
        super().__init__()
        self.model, self.bf16 = model, bf16

    def forward(self, x: Tensor) -> Tensor:
        """f(x) of a batch."""
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16, cache_enabled=False):
            f: Tensor = self.model(x)
            return f
