"""Divide and conquer for a training loop of your own, in five lines; ``examples/own_loop.py`` shows them."""

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, TypeVar

import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Sampler

from divconq.data.batches.sampler import EpochPlan, plan_epoch
from divconq.distributed import gather, on_first, shard, synchronise
from divconq.division import Partition, divide
from divconq.masks import Masks
from divconq.objective import Objective
from divconq.training.optimizer import reset_moments

Batch = TypeVar("Batch")


class DivideAndConquer(nn.Module):
    """Wraps any ``loss(embeddings, labels)``: divides the data every few epochs, and the embedding with it.

    ``labels`` are those of the whole training set, in its order. Give the optimiser that trains your network:
    the masks (and the loss, if it has parameters the optimiser does not know) join it as a group of their own.
    Under ``torchrun`` each process gets its share of every batch, and the loss is that of all of it:
    ``divconq.distributed.average_gradients``, or torch's DistributedDataParallel, does the rest.

    >>> import torch
    >>> labels = torch.arange(40) % 4
    >>> x = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    >>> optimizer = torch.optim.Adam([nn.Parameter(torch.zeros(1))])
    >>> dc = DivideAndConquer(lambda z, y: z.sum(), labels, optimizer, dim=8, k_max=2, divide_every=1)
    >>> batches = dc.batches(8)
    >>> [dc.partition.k for epoch in range(2) for cluster, index in dc.epoch(epoch, batches, lambda: x)][::5]
    [1, 2]
    """

    def __init__(
        self,
        loss: Callable[[Tensor, Tensor], Tensor],
        labels: Int64[Tensor, " n"],
        optimizer: Optimizer,
        *,
        dim: int,
        k_max: int = 4,
        divide_every: int = 10,
        masks: Literal["learned", "fixed", "none"] = "learned",
        mask_lr: float = 1e-3,
        overlap_weight: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.masks = Masks(dim, k_max, masks)
        self.objective = Objective(loss, self.masks, overlap_weight)
        self.labels, self.optimizer = labels.cpu(), optimizer
        self.k_max, self.divide_every, self.seed = k_max, divide_every, seed
        self.partition, self.batch = Partition.whole(len(labels)), 0
        device = next(parameter.device for group in optimizer.param_groups for parameter in group["params"])
        self.to(device)
        known = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        new = [parameter for parameter in self.parameters() if parameter not in known]
        if new:
            optimizer.add_param_group({"params": new, "lr": mask_lr, "weight_decay": 0.0})

    def batches(self, batch: int, per_class: int | None = None) -> "ClusterBatches":
        """Batches of indices out of one cluster each, for ``DataLoader(..., batch_sampler=...)``."""
        return ClusterBatches(self, batch, per_class)

    def epoch(
        self, epoch: int, loader: Iterable[Batch], embed: Callable[[], Float[Tensor, "n d"]]
    ) -> Iterator[tuple[int, Batch]]:
        """Divide if it is time, then give each batch of ``loader`` with the cluster it comes from.

        ``embed()`` gives ``conquer(f(x))`` of the whole training set, in the order of its labels.
        """
        synchronise(self)  # masks and loss parameters are the same on all ranks, and not apart by rounding
        if self.k_max > 1 and epoch > 0 and epoch % self.divide_every == 0:
            self.divide(embed(), seed=self.seed + epoch)
        sampler = getattr(loader, "batch_sampler", loader)
        if not isinstance(sampler, ClusterBatches):
            raise ValueError(
                "the loader must draw batches of one cluster: build it with batch_sampler=dc.batches(...)"
            )
        sampler.plan, self.batch = sampler.make_plan(epoch), sampler.batch
        yield from zip(sampler.plan.clusters.tolist(), loader, strict=True)

    def divide(self, x: Float[Tensor, "n d"], *, seed: int) -> None:
        """Recluster, match, bisect, and give every child its parent's mask."""
        self.partition = on_first(
            divide, "progressive", x, self.partition, self.labels, k_max=self.k_max, seed=seed
        )
        while self.masks.k < self.partition.k:
            self.masks.split_()
            reset_moments(self.optimizer, self.masks)

    def forward(
        self, f: Float[Tensor, "n d"], labels: Int64[Tensor, " n"], cluster: int | None
    ) -> Float[Tensor, ""]:
        """The loss of one batch in its cluster's subspace; cluster None: in the conquered space."""
        n = self.batch or len(labels)
        value: Tensor = self.objective(gather(f, n), gather(labels, n), cluster)
        return value

    def conquer(self, f: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """The final embedding, normalize(f * sum of the masks)."""
        return F.normalize(f * self.masks.conquer())


class ClusterBatches(Sampler[list[int]]):
    """The batches of the current epoch; ``DivideAndConquer.epoch`` plans them."""

    def __init__(self, owner: DivideAndConquer, batch: int, per_class: int | None) -> None:
        self.owner, self.batch, self.per_class = owner, batch, per_class
        self.plan: EpochPlan = self.make_plan(0)

    def make_plan(self, epoch: int) -> EpochPlan:
        """Which images each step of an epoch draws."""
        owner = self.owner
        return plan_epoch(
            owner.labels,
            owner.partition.labels,
            owner.partition.k,
            batch=self.batch,
            per_class=self.per_class,
            seed=owner.seed,
            epoch=epoch,
        )

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.plan.indices[:, shard(self.batch)].tolist())

    def __len__(self) -> int:
        return len(self.plan.clusters)
