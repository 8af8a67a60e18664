"""The bookkeeping of a training run: clock, progress bar, NaN guard, log, checkpoints, stop signals."""

from collections.abc import Collection
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from divconq.checks import first_line
from divconq.data.batches.sampler import EpochPlan
from divconq.data.dataset import label_fingerprint
from divconq.distributed import anywhere, on_first, wait_for_all
from divconq.evaluation.selection import LOWEST, Rank, rank_epoch
from divconq.runs.checkpoint_types import load_weights
from divconq.runs.checkpoints import Checkpoints, algorithm_state
from divconq.runs.folder import Run
from divconq.runs.lock import run_lock
from divconq.training.loggers import Loggers
from divconq.training.nan_guard import NaNGuard, warn_of_collapse
from divconq.training.optimizer import load_optimizer
from divconq.training.progress import Clock, Progress
from divconq.training.seeds import check_generator_states, generator_states, set_generator_states
from divconq.training.setup import Job
from divconq.training.stop_signals import StopSignals


class Recorder:
    """Records a run in its folder and restores it on resume.

    The loop calls ``begin_steps``, ``after_step`` for every batch, ``end_steps`` and ``end_epoch``. The recorder
    writes the log and the checkpoints, shows the progress, and stops the run at a loss that is not finite or at a
    stop signal. Only the first process writes.
    """

    def __init__(
        self,
        job: Job,
        out: Path,
        *,
        resume: bool = False,
        stop: StopSignals | None = None,
        loggers: Collection[str] = (),
    ) -> None:
        self.job, self.dc, self.config = job, job.dc, job.config
        self.stop = stop or StopSignals()
        self.best: Rank = LOWEST
        self.losses = torch.empty(0)  # of the current epoch, from before the resume
        self.generators: dict[str, Any] = {}
        self.clock = Clock()
        self.out, self.resumes, self.names_of_loggers = out, resume, loggers
        self.open = ExitStack()

    def __enter__(self) -> "Recorder":
        runtime, total = self.config.runtime, self.config.optimisation
        with ExitStack() as opened:
            self.run = self._open_run(opened)
            self.checkpoints = opened.enter_context(
                Checkpoints(self.run.folder, runtime.save_minutes, runtime.save_steps)
            )
            self.loggers = opened.enter_context(Loggers(self.names_of_loggers, self.run))
            self.progress = Progress(total.epochs, total.batch)
            opened.callback(self.progress.close)
            self.stop.patient = True
            self.open = opened.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:  # noqa: ANN401
        try:
            self.open.__exit__(*error)
        finally:
            self.stop.patient = False

    @property
    def steps_done(self) -> int:
        """Return the number of steps of the current epoch that were made before the resume."""
        return len(self.losses)

    def epochs(self) -> range:
        """Return the remaining epochs."""
        return range(self.dc.epoch, self.config.optimisation.epochs)

    def timed(self, phase: str) -> AbstractContextManager[None]:
        """Return a context manager that adds the seconds of its block to a phase of the epoch."""
        return self.clock(phase)

    def save_division(self) -> None:
        """Write the new partition and the masks it starts with to the run folder."""
        self.run.save_division(self.dc.epoch, self.dc.partition.clusters, self.dc.masks)

    def begin_steps(self, plan: EpochPlan) -> None:
        """Start the steps of an epoch. A resumed epoch restores its random generators."""
        self.plan = plan
        self.guard = NaNGuard(self.dc.epoch, plan.clusters, self.job.device, before=self.losses)
        if self.generators:
            set_generator_states(self.generators, self.job.device)
        self.progress.epoch(self.dc.epoch, self.dc.partition.k, len(plan), self.steps_done)

    def after_step(self, loss: Tensor, finite: Tensor) -> None:
        """Record the loss of a step. Write a checkpoint if one is due; stop after a stop signal."""
        self.guard.step(loss, finite)
        self.progress.step(self.guard.latest)
        stopping = anywhere(self.stop.wished)
        if self.checkpoints.step() or stopping:
            self.generators = generator_states(self.job.device)
            self.checkpoints.write(self._state(self.guard.so_far()))
            if stopping:
                self._halt()

    def end_steps(self) -> None:
        """Wait for the last step and check all losses of the epoch."""
        self.mean_loss = self.guard.mean()

    def end_epoch(self, scores: dict[str, float]) -> None:
        """Log the epoch. Write a checkpoint if one is due, or at the end of the run."""
        epoch, plan = self.dc.epoch, self.plan
        record: dict[str, Any] = {
            "epoch": epoch + 1,
            "k": self.dc.partition.k,
            "loss": self.mean_loss,
            "overlap": float(self.dc.masks.overlap().detach()),
            **({"dead_masks": float(self.dc.masks.dead())} if self.dc.masks.trained else {}),
            "without_positive": plan.without_positive,
            "left_out": plan.left_out,
            "images_per_s": plan.indices.numel() / self.clock.seconds["train"],
            **self.job.learning_rate.logged(epoch + (len(plan) - 1) / len(plan)),
            **scores,
        }
        is_best = False
        if scores:
            rank = rank_epoch(record[self.config.best_by], record["k"])
            is_best, self.best = rank > self.best, max(rank, self.best)
            warn_of_collapse(record["spread"], epoch)
        record["seconds"] = dict(self.clock.seconds)
        self.run.log(record)
        self.loggers.log(record)
        self.progress.show(record)
        self.dc.epoch = epoch + 1
        self.clock, self.losses, self.generators = Clock(), torch.empty(0), {}
        stopping = anywhere(self.stop.wished)
        last = self.dc.epoch == self.config.optimisation.epochs
        self.checkpoints.offer(self._state(self.losses), best=is_best, now=stopping or last)
        if stopping:
            self._halt()

    def export(self) -> None:
        """Wait for the last checkpoint and write the conquered model to the run folder."""
        self.progress.close()
        self.checkpoints.finish()
        with self.job.averages.applied():
            self.run.export(self.job.model, self.dc.masks.conquer())

    def log(self) -> list[dict[str, Any]]:
        """Return the log of the whole run, one record per epoch."""
        return on_first(self.run.metrics)

    def _halt(self) -> NoReturn:
        """Stop the run after its checkpoint is written."""
        self.progress.close()
        self.checkpoints.finish()
        wait_for_all()
        raise self.stop.stopped()

    def _state(self, losses: Tensor) -> dict[str, Any]:
        """Return the contents of a checkpoint; ``losses`` are those of the epoch in progress."""
        return {
            "epoch": self.dc.epoch,
            "step": len(losses),
            "best": self.best[1],
            "best_k": self.best[0],
            "losses": losses,
            "seconds": self.clock.so_far(),
            "generators": self.generators,
            "data": label_fingerprint(self.job.train),
            "model": self.job.model.state_dict(),
            "divide_and_conquer": self.dc.state_dict(),
            "optimizer": self.job.optimizer.state_dict(),
            "averages": self.job.averages.state_dict(),
        }

    def _open_run(self, opened: ExitStack) -> Run:
        """Create the run folder, or open it to resume. Its lock is held until ``opened`` is closed."""
        run = on_first(Run.open, self.out) if self.resumes else on_first(Run.create, self.out, self.config)
        lock = run_lock(run.folder)
        opened.callback(lock.release)
        on_first(lock.acquire)
        if self.resumes:
            self._resume(run)
        on_first(run.save_split, self.job.record)
        return run

    def _resume(self, run: Run) -> None:
        """Restore the last checkpoint of a run and delete the log entries after it."""
        if (state := on_first(run.resume)) is not None:
            self._restore(state)
            if "best_k" not in state:
                self.best = self._rank_in_log(on_first(run.metrics))
        divisions = self.dc.epoch + (self.steps_done > 0)
        on_first(run.rewind, self.dc.epoch, divisions, self.config)

    def _restore(self, state: dict[str, Any]) -> None:
        """Restore network, algorithm and optimiser from a checkpoint."""
        try:
            load_weights(self.job.model, state["model"])
            load_weights(self.dc, algorithm_state(state))
            load_optimizer(self.job.optimizer, state["optimizer"])
            self.job.averages.load_state_dict(state.get("averages", {}))
            if state["data"] != label_fingerprint(self.job.train):
                raise ValueError("the training images have other classes")
            self.best, self.losses = (state.get("best_k", 0), state["best"]), state["losses"]
            self.clock, self.generators = Clock(state["seconds"]), state["generators"]
            check_generator_states(self.generators, self.job.device)
        except (KeyError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"the checkpoint does not fit the settings and the data ({first_line(error)}); resume with those of "
                "its run"
            ) from error

    def _rank_in_log(self, records: list[dict[str, Any]]) -> Rank:
        """Return the rank of the best epoch of an older version, whose checkpoints lack its number of clusters."""
        score = self.best[1]
        ks = (record.get("k") for record in records if record.get(self.config.best_by) == score)
        return rank_epoch(score, next(ks, None))
