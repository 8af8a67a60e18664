"""The batches of an epoch: planned by ``DivideAndConquer``, loaded and augmented on the device."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from torch import Tensor

from divconq.accel.graphs import Fallback
from divconq.data.batches.loading import training_batches
from divconq.data.batches.sampler import EpochPlan
from divconq.data.batches.transforms import augment, augment_antialiased
from divconq.training.seeds import epoch_seed
from divconq.training.setup import Job
from divconq.training.stored_features import StoredFeatures, feature_batches

Batches: TypeAlias = Iterator[tuple[Tensor, Tensor, Tensor]]


class EpochBatches:
    """Returns the plan and the batches of each epoch. A batch is images, labels and cluster on the device.

    ``prepare`` plans an epoch ahead of time and sends the plan to the device, so that a GPU does not wait for it.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        plain = augment if job.config.data.decode_size is None else augment_antialiased
        self.view: Callable[..., Tensor] = plain
        if job.fast:
            self.view = Fallback(torch.compile(plain, dynamic=False), plain, "the augmentation")
        self.prepared: tuple[int, EpochPlan, Batches] | None = None

    def of(self, epoch: int, start: int = 0) -> tuple[EpochPlan, Batches]:
        """Return the plan of an epoch and its batches from step ``start`` on."""
        if self.prepared is None or self.prepared[0] != epoch or start:
            self.prepare(epoch, start)
        assert self.prepared is not None
        _, plan, batches = self.prepared
        self.prepared = None
        return plan, batches

    def prepare(self, epoch: int, start: int = 0) -> None:
        """Plan an epoch ahead of time. The partition must not change until ``of`` is called."""
        job, data = self.job, self.job.config.data
        plan = job.dc.plan(epoch)
        if isinstance(job.train.store, StoredFeatures):
            self.prepared = epoch, plan, feature_batches(job.train, plan, device=job.device, start=start)
            return
        batches = training_batches(
            job.train,
            plan,
            job.augmentation,
            size=data.image_size,
            resize=data.resize,
            seed=epoch_seed(job.config.optimisation.seed, epoch),
            device=job.device,
            view=self.view,
            start=start,
        )
        self.prepared = epoch, plan, batches
