"""Images per second of training: the bare network step, and training end to end."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from divconq.accel.device import uses_bf16
from divconq.accel.graphs import WARM_UP, Captured
from divconq.bench.timing import timed
from divconq.division import Partition, divide
from divconq.training.batches import EpochBatches
from divconq.training.nan_guard import NaNGuard
from divconq.training.optimizer import make_optimizer
from divconq.training.seeds import epoch_seed, seed_all
from divconq.training.setup import Job
from divconq.training.step import Network

CALLS = WARM_UP + 3  # steps until the step is compiled, captured and replayed


class Training:
    """Our training, one epoch per call, with ``k_max`` clusters drawn at random."""

    def __init__(self, job: Job) -> None:
        self.job, self.epoch, self.loss = job, 0, 0.0
        dc, k_max = job.dc, job.config.division.k_max
        # The job may hold fewer images than it was prepared with.
        dc.labels, dc.partition = job.train.labels.cpu(), Partition.whole(len(job.train))
        while dc.partition.k < k_max:
            dc.partition = divide("random", None, dc.partition, dc.labels, k_max=k_max, seed=0)
            dc.masks.split_()
        self.step, self.epochs = job.step(), EpochBatches(job)
        self.plan, self.batches = self.epochs.of(0)

    def run(self) -> int:
        """Train one epoch as ``train`` does and return the number of images."""
        job, count = self.job, self.plan.indices.numel()
        seed_all(epoch_seed(job.config.optimisation.seed, self.epoch))
        job.model.train()
        guard = NaNGuard(self.epoch, self.plan.clusters, job.device)
        for x, y, cluster in self.batches:
            guard.step(*self.step(x, y, cluster))
        self.epoch += 1
        self.plan, self.batches = self.epochs.of(self.epoch)
        self.loss = guard.mean()
        return count

    def first_batch(self) -> Tensor:
        """Return one batch as the step gets it."""
        return next(self.epochs.of(self.epoch)[1])[0].clone()


def bare_step(job: Job) -> Callable[[Tensor], object]:
    """Return the bare step of the network: forward, mean square as the loss, backward, Adam.

    BatchNorm is folded and the step is compiled and captured as in training. The learning rate is 0.
    """
    network = Network(job.model.train(), uses_bf16(job.config.runtime.precision, job.device))
    adam = make_optimizer(job.model, lr=0.0, weight_decay=job.config.optimisation.weight_decay)

    def step(x: Tensor) -> tuple[Tensor]:
        loss = network(x).float().square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        return (loss.detach(),)

    if not job.fast:
        return step
    network.compile(dynamic=False)
    return Captured(step, job.device)


def training_rates(job: Job, *, epochs: int, rounds: int) -> tuple[dict[str, list[float]], str]:
    """Return images per second of the ``bare`` step and of ``ours`` in each round, and how the step is captured.

    In every round, both make the steps of ``epochs`` epochs, one after the other.
    """
    ours = Training(job)
    bare, x = bare_step(job), ours.first_batch()
    steps = epochs * len(ours.plan)

    def bare_steps(count: int) -> int:
        for _ in range(count):
            bare(x)
        return count * len(x)

    def whole_epochs() -> int:
        return sum(ours.run() for _ in range(epochs))

    for _ in range(-(-CALLS // len(ours.plan))):
        ours.run()
    bare_steps(CALLS)
    rates: dict[str, list[float]] = {"bare": [], "ours": []}
    for _ in range(rounds):
        for name, work in (("bare", partial(bare_steps, steps)), ("ours", whole_epochs)):
            seconds, images = timed(work, job.device)
            rates[name].append(images / seconds)
    return rates, ours.step.way


def embedding_rates(job: Job, *, rounds: int) -> list[float]:
    """Return images per second of the pass that embeds all training images, in each round."""
    job.embed(job.train)
    seconds = [timed(partial(job.embed, job.train), job.device)[0] for _ in range(rounds)]
    return [len(job.train) / spent for spent in seconds]
