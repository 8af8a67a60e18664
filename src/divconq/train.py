"""THE loop: divide the data and the embedding, train each subspace on its cluster, conquer."""

import hashlib
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import torch
from torch import Tensor

from divconq.accel.device import uses_bf16
from divconq.accel.graphs import Fallback
from divconq.config import Config
from divconq.data import ImageSet
from divconq.data.batches.loading import training_batches
from divconq.data.batches.sampler import EpochPlan, plan_epoch
from divconq.data.batches.transforms import augment
from divconq.distributed import anywhere, on_every, on_first, synchronise, wait_for_all
from divconq.division import NEEDS_EMBEDDINGS, Partition, divide
from divconq.runs.checkpoints import Checkpoints
from divconq.runs.folder import Run
from divconq.training.loggers import Loggers, check_loggers
from divconq.training.nan_guard import LossWatch, warn_of_collapse
from divconq.training.optimizer import load_optimizer, reset_moments
from divconq.training.progress import Clock, Progress
from divconq.training.schedule import backbone_rests, divides, epoch_seed, warn_of_few_epochs
from divconq.training.seeds import generator_states, seed_all, set_generator_states
from divconq.training.setup import Job, prepare
from divconq.training.step import TrainingStep
from divconq.training.stop_signals import StopSignals

View: TypeAlias = Callable[..., Tensor]
Batches: TypeAlias = Iterator[tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class Position:
    """Where a run is: after so many epochs, and after the steps of the next one whose losses are there."""

    partition: Partition
    best: float = -math.inf
    epoch: int = 0
    losses: Tensor = field(default_factory=lambda: torch.empty(0))
    seconds: dict[str, float] = field(default_factory=dict)
    generators: dict[str, Any] = field(default_factory=dict)  # an epoch that begins seeds them anew

    @property
    def step(self) -> int:
        """How many steps of the epoch are done; its division came before the first."""
        return len(self.losses)


def train(
    config: Config,
    out: Path,
    *,
    resume: bool = False,
    stop: StopSignals | None = None,
    loggers: Collection[str] = (),
) -> list[dict[str, Any]]:
    """Train as ``config`` says into the run folder ``out``; returns the log, one record an epoch.

    A signal that ``stop`` notes ends it after the step, with a checkpoint: ``Stopped`` is raised. Processes of one
    ``process_group`` train together; the first of them divides, scores and writes. ``loggers`` are told of each
    record.
    """
    on_first(check_loggers, loggers)
    on_first(warn_of_few_epochs, config)
    job = on_every(prepare, config)
    synchronise(job.model, job.objective)
    model, masks, optimizer = job.model, job.masks, job.optimizer
    images, labels = job.train, job.train.labels
    at = Position(Partition.whole(len(images)))
    if resume:
        run = on_first(Run.open, out)
        if (state := on_first(run.resume)) is not None:
            at = restore(job, state)
        on_first(run.rewind, at.epoch, at.epoch + (at.step > 0), config)
    else:
        run = on_first(Run.create, out, config)

    partition, best = at.partition, at.best
    step, view = step_of(job), view_of(job)
    coming, seen = None, None
    steps = math.ceil(len(images) / config.batch)
    progress = Progress(config.epochs, steps, config.batch, at.epoch * steps + at.step)
    stop = stop or StopSignals()
    stop.patient = True
    saving = Checkpoints(out, config.save_minutes, config.save_steps)
    with saving as checkpoints, Loggers(loggers, run) as curves:
        for epoch in range(at.epoch, config.epochs):
            clock = Clock(at.seconds)
            if divides(config, epoch) and at.step == 0:
                with clock("divide"):
                    kind, seed = config.division, config.seed + epoch
                    features = config.cluster_on == "features"
                    x = None if features else seen
                    if x is None and kind in NEEDS_EMBEDDINGS:
                        x = job.embed(images, features=features)
                    partition = on_first(
                        divide,
                        kind,
                        x,
                        partition,
                        labels,
                        k_max=config.k_max,
                        seed=seed,
                        groups=images.groups,
                    )
                    while masks.k < partition.k:
                        masks.split_(config.mask_split_noise, seed=seed)  # children start as their parent
                        if config.mask_reset:
                            reset_moments(optimizer, masks)
                    run.save_division(epoch, partition.labels, masks)

            with clock("train"):
                plan, batches = coming or epoch_of(job, partition, epoch, view, start=at.step)
                seed_all(epoch_seed(config.seed, epoch))
                finetuning = config.finetune_from is not None and epoch >= config.finetune_from
                model.train().backbone.requires_grad_(not backbone_rests(config, epoch))
                watch = LossWatch(epoch, plan.clusters, job.device, before=at.losses)
                if at.step > 0:
                    set_generator_states(at.generators, job.device)
                progress.epoch(epoch, partition.k)
                for x, y, cluster in batches:
                    loss, finite = step(x, y, None if finetuning else cluster)
                    watch.step(loss, finite)
                    progress.step(watch.latest)
                    stopping = anywhere(stop.wished)
                    if checkpoints.step() or stopping:
                        states = generator_states(job.device)
                        within = Position(partition, best, epoch, watch.so_far(), clock.so_far(), states)
                        checkpoints.write(snapshot(job, within))
                        if stopping:
                            halt(stop, progress, checkpoints)
                coming = None  # planned while a GPU still works, unless a division comes first
                if epoch + 1 < config.epochs and not divides(config, epoch + 1):
                    coming = epoch_of(job, partition, epoch + 1, view)
                mean_loss = watch.mean()

            record: dict[str, Any] = {
                "epoch": epoch + 1,
                "k": partition.k,
                "loss": mean_loss,
                "overlap": float(masks.overlap().detach()),
                "lonely": plan.lonely,
                "waiting": plan.waiting,
                "images_per_s": plan.indices.numel() / clock.seconds["train"],
            }
            is_best, seen = False, None
            if (epoch + 1) % config.eval_every == 0 or epoch + 1 == config.epochs:
                with clock("evaluate"):
                    seen = job.embed(images) if config.train_recall else None  # for the next division, too
                    record |= job.scores(seen)
                score = record[config.best_by]
                is_best, best = score > best, max(score, best)
                warn_of_collapse(record["spread"], epoch)
            record["seconds"] = dict(clock.seconds)
            run.log(record)
            curves.log(record)
            progress.show(record)
            at = Position(partition, best, epoch + 1)
            stopping = anywhere(stop.wished)
            checkpoints.offer(snapshot(job, at), best=is_best, now=stopping or at.epoch == config.epochs)
            if stopping:
                halt(stop, progress, checkpoints)
    progress.close()
    run.export(model, masks.conquer())
    return on_first(run.metrics)


def halt(stop: StopSignals, progress: Progress, checkpoints: Checkpoints) -> NoReturn:
    """End the run once its checkpoint is written; nobody ends before it is."""
    progress.close()
    checkpoints.finish()
    wait_for_all()
    raise stop.stopped()


def snapshot(job: Job, at: Position) -> dict[str, Any]:
    """What a checkpoint holds."""
    return {
        "epoch": at.epoch,
        "step": at.step,
        "best": at.best,
        "k": at.partition.k,
        "partition": at.partition.labels,
        "losses": at.losses,
        "seconds": at.seconds,
        "generators": at.generators,
        "data": fingerprint(job.train),
        "model": job.model.state_dict(),
        "masks": job.masks.state_dict(),
        "loss": job.loss.state_dict(),
        "optimizer": job.optimizer.state_dict(),
    }


def restore(job: Job, state: dict[str, Any]) -> Position:
    """Fill network, masks, loss and optimiser from a checkpoint; returns where the run was."""
    try:
        job.model.load_state_dict(state["model"])
        job.masks.load_state_dict(state["masks"])
        job.loss.load_state_dict(state["loss"])
        rates = [
            {name: group[name] for name in ("lr", "weight_decay")} for group in job.optimizer.param_groups
        ]
        load_optimizer(job.optimizer, state["optimizer"])
        for group, rate in zip(job.optimizer.param_groups, rates, strict=True):
            group.update(rate)  # they are what the settings say now
        partition = Partition(state["partition"], state["k"])
        if len(partition.labels) != len(job.train):
            raise ValueError(
                f"it divides {len(partition.labels)} training images, there are {len(job.train)} now"
            )
        if state["data"] != fingerprint(job.train):
            raise ValueError("the classes of the training images were others")
        names = ("best", "epoch", "losses", "seconds", "generators")
        return Position(partition, **{name: state[name] for name in names})
    except (KeyError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"the checkpoint does not fit the settings and the data ({reason}); resume with those it was made with"
        ) from error


def fingerprint(images: ImageSet) -> str:
    """A number for the labels and the names of their classes, to tell other data."""
    names = "\n".join(images.names).encode()
    return hashlib.sha256(images.labels.cpu().numpy().tobytes() + names).hexdigest()


def step_of(job: Job) -> TrainingStep:
    """How a batch is trained on."""
    bf16 = uses_bf16(job.config.precision, job.device)
    return TrainingStep(job.model, job.objective, job.optimizer, bf16=bf16, fast=job.fast)


def view_of(job: Job) -> View:
    """The augmentation, compiled on a GPU when it is first used."""
    if not job.fast:
        return augment
    return Fallback(torch.compile(augment, dynamic=False), augment, "the augmentation")


def epoch_of(
    job: Job, partition: Partition, epoch: int, view: View, start: int = 0
) -> tuple[EpochPlan, Batches]:
    """The plan of an epoch, each batch out of one cluster, and its batches from step ``start`` on.

    Of a batch there are images, labels and cluster, on the device.
    """
    config, images = job.config, job.train
    plan = plan_epoch(
        images.labels,
        partition.labels,
        partition.k,
        batch=config.batch,
        per_class=config.per_class,
        order=config.cluster_order,
        seed=config.seed,
        epoch=epoch,
    )
    batches = training_batches(
        images,
        plan,
        job.changes,
        size=config.image_size,
        resize=config.resize,
        seed=epoch_seed(config.seed, epoch),
        device=job.device,
        view=view,
        start=start,
    )
    return plan, batches
