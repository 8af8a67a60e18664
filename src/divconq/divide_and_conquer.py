"""THE algorithm: divide the data and the embedding, train each subspace on its cluster, conquer."""

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, Literal, TypeVar

import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.optim import Optimizer

from divconq.checks import check_batch, check_class_sampling, check_rate
from divconq.config import DivisionConfig, LossConfig, MasksConfig, ModelConfig, OptimisationConfig
from divconq.data.batches.sampler import ClusterBatches, EpochPlan, plan_epoch
from divconq.distributed import gather, on_first, synchronise
from divconq.division import DIVISIONS, Partition, divide
from divconq.division.schedule import divides
from divconq.losses import check_takes_keys
from divconq.losses.memory import Memory, check_memory
from divconq.masks import Masks
from divconq.masks.projection import project_after_steps
from divconq.objective import Objective

Batch = TypeVar("Batch")


class DivideAndConquer(nn.Module):
    """Divide and conquer with any ``loss(embeddings, labels)``.

    This object holds everything the paper describes: it decides when to divide, divides the images and the
    embedding, plans the batches of an epoch, computes the loss of a batch in its subspace and conquers.
    ``divconq train`` runs it, and so can any other training loop (``examples/own_loop.py``):

    .. code-block:: python

        dc = DivideAndConquer(loss, labels, optimizer, dim=512, batch=80)
        loader = DataLoader(dataset, batch_sampler=dc.sampler)
        for epoch in range(dc.epoch, epochs):
            for cluster, (x, y) in dc.batches(loader, epoch, embed):
                value = dc(model(x), y, cluster)
                ...

    Parameters
    ----------
    loss : callable
        Takes unit vectors (n, d) and class labels (n,), returns a scalar.
    labels : int64 tensor (n,)
        The class of every training image, in the order of the dataset.
    optimizer : Optimizer, optional
        The optimiser of the network. The masks, and loss parameters that it lacks, are added to it as new parameter
        groups. Without an optimiser, you train the masks and the loss yourself, and with
        ``mask_activation="projected"`` you call ``dc.masks.project_()`` after every step.
    dim : int
        Dimensions d of the embedding.
    batch, per_class : int, int or None
        Images per batch; images of each class in a batch, or None to draw them uniformly.
    class_sampling : str
        With ``per_class``, draw classes in proportion to their images (``images``) or equally often (``classes``).
    division, k_max, divide_every, cluster_order, cluster_steps, epoch_length, freeze_backbone_epochs, finetune_from
        The division of the data, see ``divconq.config.DivisionConfig``.
    groups : int64 tensor (n,), optional
        The super-category of every image, for ``division="labels"``.
    masks, mask_activation, overlap_weight, mask_split_noise, mask_reset, conquer
        The division of the embedding, see ``divconq.config.MasksConfig``.
    memory, memory_weight : int, float
        Past embeddings that a batch is compared with, see ``divconq.config.LossConfig``.
    mask_lr, mask_weight_decay, loss_lr : float
        Settings of the parameter groups that are added to the optimiser. ``loss_lr`` is ``mask_lr`` if not given.
    seed : int
        Seed of divisions and batches.

    ``state_dict()`` holds all of its state: the masks, the parameters of the loss, the partition and the epoch.

    >>> import torch
    >>> labels = torch.arange(40) % 4
    >>> x = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    >>> dc = DivideAndConquer(lambda z, y: z.sum(), labels, dim=8, batch=8, k_max=2, divide_every=1)
    >>> [dc.partition.k for epoch in range(2) for cluster, index in dc.batches(dc.sampler, epoch, lambda: x)][::5]
    [1, 2]
    """

    def __init__(
        self,
        loss: Callable[[Tensor, Tensor], Tensor],
        labels: Int64[Tensor, " n"],
        optimizer: Optimizer | None = None,
        *,
        dim: int,
        batch: int,
        per_class: int | None = None,
        class_sampling: Literal["images", "classes"] = "images",
        division: str = "progressive",
        k_max: int = 4,
        divide_every: int = 10,
        cluster_order: Literal["random", "round_robin"] = "random",
        cluster_steps: Literal["proportional", "equal"] = "proportional",
        epoch_length: Literal["images", "largest", "smallest"] = "images",
        freeze_backbone_epochs: int = 0,
        finetune_from: int | None = None,
        groups: Int64[Tensor, " n"] | None = None,
        masks: str = "learned",
        mask_activation: str = "relu",
        overlap_weight: float = 1.0,
        mask_split_noise: float = 0.0,
        mask_reset: bool = True,
        conquer: Literal["sum", "plain"] = "sum",
        mask_lr: float = 1e-3,
        mask_weight_decay: float = 0.0,
        loss_lr: float | None = None,
        memory: int = 0,
        memory_weight: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.settings = DivisionConfig(
            strategy=division,
            k_max=k_max,
            divide_every=divide_every,
            cluster_order=cluster_order,
            cluster_steps=cluster_steps,
            epoch_length=epoch_length,
            freeze_backbone_epochs=freeze_backbone_epochs,
            finetune_from=finetune_from,
        )
        self.mask_settings = MasksConfig(
            kind=masks,
            activation=mask_activation,
            overlap_weight=overlap_weight,
            split_noise=mask_split_noise,
            reset=mask_reset,
            conquer=conquer,
            weight_decay=mask_weight_decay,
        )
        LossConfig(memory=memory, memory_weight=memory_weight)
        ModelConfig(dim=dim)  # the sections check their settings, as on the command line
        OptimisationConfig(batch=batch, per_class=per_class, class_sampling=class_sampling, seed=seed)
        check_batch(batch, per_class)
        check_class_sampling(class_sampling, per_class)
        check_rate("mask_lr", mask_lr)
        check_rate("loss_lr", mask_lr if loss_lr is None else loss_lr)
        if groups is not None and len(groups) != len(labels):
            raise ValueError(
                f"groups must have one value for each of the {len(labels)} images, got {len(groups)}"
            )
        if groups is None and DIVISIONS[division].needs_groups and k_max > 1:
            raise ValueError(
                f"division {division!r} needs super-categories; pass groups, or use another division"
            )
        if memory:
            check_takes_keys(loss, type(loss).__name__)
            check_memory(memory, len(labels))
        past = Memory(memory, dim) if memory else None
        self.objective = Objective(
            loss, Masks(dim, k_max, masks, conquer, mask_activation), overlap_weight, past, memory_weight
        )
        self.labels, self.groups = labels.cpu(), groups
        self.batch, self.per_class, self.class_sampling, self.seed = batch, per_class, class_sampling, seed
        self.partition = Partition.whole(len(labels))
        self.epoch = 0  # the epoch in progress, or the next one
        self.divided_at: int | None = None  # the epoch of the latest division
        self.optimizer = optimizer
        if optimizer is not None:
            self._join(optimizer, mask_lr, mask_weight_decay, mask_lr if loss_lr is None else loss_lr)

    @property
    def masks(self) -> Masks:
        """Return the masks of all subspaces."""
        return self.objective.masks

    @cached_property
    def sampler(self) -> ClusterBatches:
        """Return the batch sampler for your own DataLoader."""
        return ClusterBatches(self.plan(0))

    @property
    def loss(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the base loss."""
        return self.objective.loss

    def divides(self, epoch: int) -> bool:
        """Return whether the schedule has a division before ``epoch``."""
        settings = self.settings
        return divides(epoch, settings.strategy, settings.k_max, settings.divide_every)

    def division_due(self, epoch: int) -> bool:
        """Return whether ``epoch`` begins with a division that has not been made yet."""
        return self.divides(epoch) and self.divided_at != epoch

    @property
    def needs_embeddings(self) -> bool:
        """Return whether ``divide`` needs the embeddings of the training images."""
        return DIVISIONS[self.settings.strategy].needs_embeddings

    def divide(self, x: Float[Tensor, "n d"] | None, epoch: int) -> None:
        """Divide the images and the embedding. Each child cluster starts with the mask of its parent.

        ``x`` holds the vectors to cluster: the conquered embeddings of all training images, or their features.
        """
        self.partition = on_first(
            divide,
            self.settings.strategy,
            x,
            self.partition,
            self.labels,
            k_max=self.settings.k_max,
            seed=self.seed + epoch,
            groups=self.groups,
        )
        while self.masks.k < self.partition.k:
            rested = self.masks.k == 1  # the moments of a mask that does not train hold weight decay only
            self.masks.split_(self.mask_settings.split_noise, seed=self.seed + epoch)
            if (self.mask_settings.reset or rested) and self.optimizer is not None:
                reset_moments(self.optimizer, self.masks)
        self.divided_at = epoch
        self.rotate(epoch)

    def rotate(self, epoch: int) -> None:
        """Give ``rotating`` masks to the clusters in the order of ``epoch``, which is drawn by the seed.

        Call this at the start of every epoch; ``divide`` and ``batches`` do. Other masks stay as they are.

        >>> import torch
        >>> dc = DivideAndConquer(F.mse_loss, torch.arange(8) % 2, dim=4, batch=4, masks="rotating", division="random")
        >>> dc.divide(None, epoch=2); dc.masks.active()[0].tolist()
        [0.0, 0.0, 1.0, 1.0]
        >>> dc.rotate(3); dc.masks.active()[0].tolist()
        [1.0, 1.0, 0.0, 0.0]
        """
        self.masks.rotate_(seed=self.seed, epoch=epoch)

    def plan(self, epoch: int) -> EpochPlan:
        """Return the plan of an epoch: the cluster and the images of every step."""
        return plan_epoch(
            self.labels,
            self.partition.clusters,
            self.partition.k,
            batch=self.batch,
            per_class=self.per_class,
            class_sampling=self.class_sampling,
            order=self.settings.cluster_order,
            cluster_steps=self.settings.cluster_steps,
            epoch_length=self.settings.epoch_length,
            seed=self.seed,
            epoch=epoch,
        )

    def finetunes(self, epoch: int) -> bool:
        """Return whether ``epoch`` trains in the conquered space."""
        start = self.settings.finetune_from
        return start is not None and epoch >= start

    def freezes_backbone(self, epoch: int) -> bool:
        """Return whether ``epoch`` follows a division so closely that only the head and the masks train.

        >>> import torch
        >>> dc = DivideAndConquer(
        ...     F.mse_loss, torch.arange(8) % 2, dim=4, batch=4, divide_every=4, freeze_backbone_epochs=1
        ... )
        >>> [epoch for epoch in range(9) if dc.freezes_backbone(epoch)]
        [4, 8]
        """
        recent = range(max(0, epoch - self.settings.freeze_backbone_epochs + 1), epoch + 1)
        return any(map(self.divides, recent))

    def forward(
        self, f: Float[Tensor, "n d"], labels: Int64[Tensor, " n"], cluster: int | Int64[Tensor, ""] | None
    ) -> Float[Tensor, ""]:
        """Return the loss of one batch in the subspace of its cluster, or in the conquered space if it is None.

        Under ``torchrun``, ``f`` and ``labels`` are this process's share of the batch; the result is the loss of the
        whole batch. ``divconq.distributed`` averages the gradients.
        """
        value: Tensor = self.objective(gather(f, self.batch), gather(labels, self.batch), cluster)
        return value

    def conquer(self, f: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Return the final embeddings: normalize(f * sum of the masks)."""
        return F.normalize(f * self.masks.conquer())

    def batches(
        self, loader: Iterable[Batch], epoch: int, embed: Callable[[], Float[Tensor, "n d"]]
    ) -> Iterator[tuple[int | None, Batch]]:
        """Divide if the schedule says so, then yield every batch of ``loader`` with its cluster.

        ``loader`` is a DataLoader with ``batch_sampler=dc.sampler``. ``embed()`` returns ``conquer(f(x))`` of all
        training images, in the order of their labels. The cluster is None once fine-tuning has begun.
        """
        if getattr(loader, "batch_sampler", loader) is not self.sampler:
            raise ValueError(
                "the loader must draw each batch from one cluster: build it with batch_sampler=dc.sampler"
            )
        self.epoch = epoch
        synchronise(self)  # keeps masks and losses of all processes identical despite rounding
        if self.division_due(epoch):
            self.divide(embed() if self.needs_embeddings else None, epoch)
        self.rotate(epoch)
        self.sampler.plan = self.plan(epoch)
        for cluster, batch in zip(self.sampler.plan.clusters.tolist(), loader, strict=True):
            yield None if self.finetunes(epoch) else cluster, batch
        self.epoch = epoch + 1

    def get_extra_state(self) -> dict[str, Any]:
        """Return the state that is not in parameters and buffers."""
        return {
            "clusters": self.partition.clusters,
            "k": self.partition.k,
            "epoch": self.epoch,
            "divided_at": self.divided_at,
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the state that ``get_extra_state`` returned."""
        partition = Partition(state["clusters"], state["k"])
        if len(partition.clusters) != len(self.labels):
            raise ValueError(
                f"it divides {len(partition.clusters)} training images, there are {len(self.labels)} now"
            )
        self.partition, self.epoch, self.divided_at = partition, state["epoch"], state["divided_at"]

    def _join(self, optimizer: Optimizer, mask_lr: float, mask_weight_decay: float, loss_lr: float) -> None:
        """Move to the optimiser's device and add the missing parameters to the optimiser."""
        known = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        self.to(next(iter(known)).device)
        masks = [*self.masks.parameters()]
        others = [p for p in self.parameters() if p not in {*masks, *known}]
        for name, parameters, lr, decay in (
            ("masks", masks, mask_lr, mask_weight_decay),
            ("loss", others, loss_lr, 0.0),
        ):
            if parameters:
                optimizer.add_param_group(
                    {"name": name, "params": parameters, "lr": lr, "weight_decay": decay}
                )
        project_after_steps(optimizer, self.masks)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self.optimizer is not None:  # a copied or unpickled optimiser has lost its hooks
            project_after_steps(self.optimizer, self.masks)


def reset_moments(optimizer: Optimizer, module: nn.Module) -> None:
    """Set the optimiser's moments of a module's parameters to zero.

    >>> import torch
    >>> masks = Masks(4, 2)
    >>> adam = torch.optim.Adam(masks.parameters()); masks.conquer().sum().backward(); adam.step()
    >>> reset_moments(adam, masks); float(adam.state[masks.weight]["exp_avg"].abs().sum())
    0.0
    """
    for parameter in module.parameters():
        for moment in optimizer.state.get(parameter, {}).values():
            if isinstance(moment, Tensor):
                moment.zero_()
