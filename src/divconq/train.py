"""THE loop: divide the data and the embedding, train each subspace on its cluster, conquer."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from divconq.config import Config
from divconq.distributed import on_every, on_first, synchronise
from divconq.division.schedule import warn_if_too_short
from divconq.recorder import Recorder
from divconq.runs.folder import Run
from divconq.runs.lock import check_not_locked
from divconq.training.agreement import check_same_command, check_same_data
from divconq.training.batches import EpochBatches
from divconq.training.cluster_count import Way
from divconq.training.loggers import check_loggers
from divconq.training.mixture import fit_head, fits_head
from divconq.training.seeds import epoch_seed, seed_all
from divconq.training.setup import prepare
from divconq.training.stop_signals import StopSignals


def train(
    config: Config,
    out: Path,
    *,
    resume: bool = False,
    stop: StopSignals | None = None,
    loggers: Collection[str] = (),
    accept_changes: bool = False,
    lower_k_max: bool = False,
) -> list[dict[str, Any]]:
    """Train a model with the settings of ``config`` into the run folder ``out``.

    Parameters
    ----------
    config : Config
        All settings of the run.
    out : Path
        The run folder. It must not exist, unless ``resume`` continues the run in it.
    resume : bool
        Continue from the last checkpoint in ``out``.
    stop : StopSignals, optional
        After a signal, the run finishes its step, writes a checkpoint and raises ``Stopped``.
    loggers : collection of str
        Names in ``divconq.training.loggers.LOGGERS`` that also receive the log.
    accept_changes : bool
        Continue although image files have changed since the run was started.
    lower_k_max : bool
        Lower ``k_max`` to what a small dataset allows, with a warning. By default, a ``k_max`` that no division can
        reach is an error.

    Returns
    -------
    list of dict
        The log: one record per epoch.

    Under ``torchrun`` all processes call this function. They share every batch; the first process divides, scores
    and writes.
    """
    check_same_command(config, out=out, resume=resume, loggers=sorted(loggers))
    on_first(check_loggers, loggers)
    if resume:
        on_first(check_not_locked, out)
    else:
        on_first(Run.check_new, out)
    division, epochs = config.division, config.optimisation.epochs
    on_first(warn_if_too_short, epochs, division.strategy, config.max_clusters, division.divide_every)
    record = on_first(lambda: Run.open(out).split()) if resume else None
    way: Way = "keep" if resume else "lower" if lower_k_max else "check"
    job = on_every(prepare, config, record, accept_changes=accept_changes, k_max=way)
    check_same_data(job.fingerprints)
    model, dc, step = job.model, job.dc, job.step()
    synchronise(model, dc)
    job.averages.restart()

    with Recorder(job, out, resume=resume, stop=stop, loggers=loggers) as recorder:
        batches, embeddings = EpochBatches(job), None
        for epoch in recorder.epochs():
            if dc.divides(epoch) and recorder.steps_done == 0:
                with recorder.timed("divide"):
                    dc.divide(job.embed_to_divide(embeddings), epoch)
                    job.averages.restart("masks")
                    recorder.save_division()
            if fits_head(config, epoch) and recorder.steps_done == 0:
                with recorder.timed("divide"):
                    features = job.embed(job.train, features=True)
                    fit_head(model.head, features, config.optimisation.seed + epoch)
            dc.rotate(epoch)

            with recorder.timed("train"):
                plan, images_of_epoch = batches.of(epoch, start=recorder.steps_done)
                seed_all(epoch_seed(config.optimisation.seed, epoch))
                model.train().backbone.requires_grad_(job.trains_backbone(epoch))
                recorder.begin_steps(plan)
                for number, (images, labels, cluster) in enumerate(images_of_epoch, recorder.steps_done):
                    job.learning_rate.set(epoch + number / len(plan))
                    loss, finite = step(images, labels, None if dc.finetunes(epoch) else cluster)
                    recorder.after_step(loss, finite)
                if epoch + 1 < epochs and not dc.divides(epoch + 1):
                    batches.prepare(epoch + 1)  # while a GPU still computes the last steps
                recorder.end_steps()

            scores, embeddings = {}, None
            if job.evaluates(epoch):
                with recorder.timed("evaluate"):
                    if config.evaluation.train_recall:
                        embeddings = job.embed(job.train)  # the next division uses them again
                    scores = job.scores(embeddings)
            recorder.end_epoch(scores)
        recorder.export()
    return recorder.log()
