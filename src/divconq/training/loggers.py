"""The curves of a run in TensorBoard and in Weights & Biases, beside ``metrics.jsonl``; both packages are optional."""

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
    """What takes the figures of a run; an epoch that comes again is not there twice."""

    def log(self, epoch: int, figures: Mapping[str, float]) -> None:
        """Take what was measured in an epoch, so that it is kept whatever happens next."""

    def close(self, *, failed: bool) -> None:
        """No more epochs will come."""


class TensorBoard:
    """Event files in ``RUN/tensorboard``; each begins with the whole log so far and replaces those before it."""

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
    """A run of the project ``divconq``; ``RUN/wandb/divconq.json`` keeps its id and the last epoch that it has."""

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
        """Wait until all is written or sent."""
        self.run.finish(exit_code=int(failed))

    def _keep(self) -> None:
        text = json.dumps({"id": self.id, "epoch": self.epoch})
        write_atomically(self.file, lambda path: path.write_text(text + "\n"))


LOGGERS: dict[str, Callable[[Run], Logger]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}


class Loggers:
    """Those that are named, from the log that a run has already on; only the first process has any.

    The log of the run is the truth: one that fails is left out with a warning, and training goes on.
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
        """Give one epoch's record of ``metrics.jsonl`` to all of them."""
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
        except Exception as error:  # of somebody else's package, and no reason to end a run
            self.loggers.pop(name, None)
            warnings.warn(
                f"--{name} ends here ({error}); training goes on, and --resume with --{name} adds what is missing",
                stacklevel=2,
            )


def check_loggers(names: Collection[str]) -> None:
    """Refuse loggers whose packages are not installed, or that nobody is logged in to.

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
                f"--{name} needs a package that is not there ({error}); install it with: pip install {name}"
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
    """The figures of a record; those of a table inside it, such as the seconds of each phase, as ``table/name``.

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
