"""Loggers for TensorBoard and Weights & Biases. Both packages are optional."""

import json
import secrets
import warnings
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from types import TracebackType
from typing import Any, ParamSpec, Protocol

from divconq.checks import did_you_mean
from divconq.config import plain_settings
from divconq.distributed import first_only
from divconq.io.atomic import write_atomically
from divconq.runs.folder import Run

Arguments = ParamSpec("Arguments")
NEEDED = {"tensorboard": ("torch.utils.tensorboard", "SummaryWriter"), "wandb": ("wandb", "init")}


class Logger(Protocol):
    """Receives the log of a run. An epoch that is logged again after a resume must not appear twice."""

    def log(self, epoch: int, figures: Mapping[str, float]) -> None:
        """Write the values of an epoch."""

    def close(self, *, failed: bool) -> None:
        """End the log."""


class TensorBoard:
    """Writes event files to ``RUN/tensorboard``. Each new file repeats the log so far and replaces the old files."""

    def __init__(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=0)

    def log(self, epoch: int, figures: Mapping[str, float]) -> None:
        """Write the points and flush them."""
        for name, value in figures.items():
            self.writer.add_scalar(name, value, epoch)
        self.writer.flush()

    def close(self, *, failed: bool) -> None:
        """Close the file."""
        self.writer.close()


class WeightsAndBiases:
    """Logs to the project ``divconq``. ``RUN/wandb/divconq.json`` holds the id and the last logged epoch."""

    def __init__(self, run: Run) -> None:
        import wandb

        self.file = run.folder / "wandb" / "divconq.json"
        known = json.loads(self.file.read_text()) if self.file.is_file() else {}
        self.id, self.epoch = known.get("id", secrets.token_hex(4)), known.get("epoch", 0)
        self.run = wandb.init(
            project="divconq",
            name=run.folder.resolve().name,
            id=self.id,
            resume="allow",
            dir=str(run.folder),
            config=plain_settings(run.config),
            allow_val_change=True,
        )
        self.file.parent.mkdir(exist_ok=True)
        self._keep()

    def log(self, epoch: int, figures: Mapping[str, float]) -> None:
        """Log an epoch with its number as the step, unless it was logged before."""
        if epoch > self.epoch:
            self.run.log(dict(figures), step=epoch)
            self.epoch = epoch
            self._keep()

    def close(self, *, failed: bool) -> None:
        """Wait until everything is written or sent."""
        self.run.finish(exit_code=int(failed))

    def _keep(self) -> None:
        text = json.dumps({"id": self.id, "epoch": self.epoch})
        write_atomically(self.file, lambda path: path.write_text(text + "\n"))


LOGGERS: dict[str, Callable[[Run], Logger]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}


class Loggers:
    """The loggers of a run. Each receives the log so far, then every new record.

    A logger that fails is removed with a warning, and training continues. Only the first process has loggers.
    """

    def __init__(self, names: Collection[str], run: Run) -> None:
        self.loggers: dict[str, Logger] = {}
        self._start(names, run)

    def __enter__(self) -> "Loggers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, logger in list(self.loggers.items()):
            self._try(name, logger.close, failed=kind is not None)

    @first_only
    def log(self, record: Mapping[str, Any]) -> None:
        """Pass a record of ``metrics.jsonl`` to all loggers."""
        for name, logger in list(self.loggers.items()):
            self._try(name, logger.log, record["epoch"], scalars(record))

    @first_only
    def _start(self, names: Collection[str], run: Run) -> None:
        for name in names:
            self._try(name, self._open, name, run)
        for record in run.metrics() if self.loggers else ():
            self.log(record)

    def _open(self, name: str, run: Run) -> None:
        self.loggers[name] = LOGGERS[name](run)

    def _try(
        self,
        name: str,
        function: Callable[Arguments, None],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> None:
        try:
            function(*args, **kwargs)
        except Exception as error:  # an optional package must not end the run
            self.loggers.pop(name, None)
            warnings.warn(
                f"--{name} failed and is off from here on ({error}); training continues; "
                f"--resume with --{name} adds the missing epochs",
                stacklevel=2,
            )


def check_loggers(names: Collection[str]) -> None:
    """Raise ValueError if the package of a logger is missing or not logged in.

    >>> check_loggers(["tensorbord"])
    Traceback (most recent call last):
    ValueError: unknown logger 'tensorbord': choose from tensorboard, wandb; did you mean 'tensorboard'?
    """
    for name in names:
        if name not in NEEDED:
            hint = did_you_mean(name, NEEDED)
            raise ValueError(f"unknown logger {name!r}: choose from {', '.join(NEEDED)}{hint}")
        module, attribute = NEEDED[name]
        try:
            getattr(import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise ValueError(
                f"--{name} needs a package that cannot be imported ({error}); install it with: pip install {name}"
            ) from error
        if name == "wandb":
            _check_login()


def _check_login() -> None:
    import wandb

    if wandb.setup().settings.mode != "online":
        return
    try:
        wandb.login()
    except Exception as error:
        raise ValueError(
            f"--wandb cannot log in ({error}); run wandb login first, or set WANDB_MODE=offline to keep the curves in "
            "the run folder"
        ) from error


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a record; nested names are joined, as in ``seconds/train``.

    >>> scalars({"epoch": 2, "k": 4, "loss": 0.5, "seconds": {"train": 1.5}})
    {'k': 4.0, 'loss': 0.5, 'seconds/train': 1.5}
    """
    figures: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            figures |= {f"{name}/{inner}": figure for inner, figure in scalars(value).items()}
        elif isinstance(value, (int, float)) and name != "epoch":
            figures[name] = float(value)
    return figures
