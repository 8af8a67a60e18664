"""``divconq train``: start a run, or continue one."""

import os
import shlex
from pathlib import Path
from typing import Any

from divconq.cli.arguments import TrainArguments
from divconq.cli.inspect_commands import write_analysis
from divconq.cli.messages import fail, is_first_process, say
from divconq.cli.parsing import Start, starting_config
from divconq.config import Config, changes_on_resume, differences, read_config, upgraded
from divconq.io.atomic import FULL
from divconq.presets import PRESETS
from divconq.training.stop_signals import StopSignals, exit_code


def train_command(start: Start, arguments: TrainArguments, free: dict[str, dict[str, Any]]) -> None:
    """Run ``divconq train``."""
    named = start.words[1] if len(start.words) > 1 else None
    before = starting_config(start)
    given = {name for name in ("alpha", "beta") if getattr(start, name) is not None}
    config = _with_free_arguments(before, arguments.config, free, given)
    _check(before, arguments, config, named)
    from divconq.accel.device import pick_device
    from divconq.distributed import on_first, process_group
    from divconq.training.agreement import check_same_command
    from divconq.training.loggers import LOGGERS
    from divconq.training.mixture import without_subspaces

    config = without_subspaces(config)
    with process_group(pick_device(config.runtime.device)):
        chosen = {name: getattr(arguments, name) for name in ("out", "resume", "accept_changes", "analyze")}
        check_same_command(config, **chosen, **{name: getattr(arguments, name) for name in LOGGERS})
        out = (
            arguments.resume or arguments.out or on_first(_free_folder, named or Path(config.data.name).stem)
        )
        if start.k_max is None and on_first(_unfinished, out):
            config = config.replace(
                k_max=on_first(read_config, out).division.k_max
            )  # it may have been lowered
        again = arguments.resume is not None or on_first(_started_again, out, config)
        loggers = [name for name in LOGGERS if getattr(arguments, name)]
        _train(
            config,
            out,
            resume=again,
            loggers=loggers,
            accept_changes=arguments.accept_changes,
            lower_k_max=start.k_max is None,
        )
    if arguments.analyze and is_first_process():
        write_analysis([out], out / "analysis", device=config.runtime.device)


def _with_free_arguments(
    before: Config, config: Config, free: dict[str, dict[str, Any]], given: set[str]
) -> Config:
    """Add the arguments of the loss and the miner, and make the paths absolute.

    Another loss than that of ``before`` does not take over its arguments. ``given`` names the settings among alpha and
    beta that are on the command line; they replace an argument of ``before``, and are replaced by ``--loss.beta``.
    """
    same_loss, same_miner = config.loss.name == before.loss.name, config.loss.miner == before.loss.miner
    settings = config.settings()
    named_now = upgraded({"loss": config.loss.name, "loss_args": free["loss"]})
    return config.replace(
        data=_absolute(config.data.name),
        loss_args={
            **{name: value for name, value in before.loss.args.items() if same_loss and name not in given},
            **named_now["loss_args"],
        },
        **{
            name: None
            for name in ("alpha", "beta")
            if name not in given and (not same_loss or name in free["loss"])
        },
        miner_args={**(before.loss.miner_args if same_miner else {}), **free["miner"]},
        **{
            name: settings[name].resolve()
            for name in ("root", "backbone_weights", "import_file")
            if settings[name] is not None
        },
    )


def _check(before: Config, arguments: TrainArguments, config: Config, named: str | None) -> None:
    """Raise ValueError for flags that conflict, and for changes that alter the result of a resumed run."""
    no_word = (None, "[]")  # tyro returns the latter next to flags it does not know, such as --loss.alpha
    if named is None and arguments.preset not in no_word:
        raise ValueError(
            f"a preset must come before the flags, got {arguments.preset!r} after them; use divconq train PRESET ..."
        )
    if arguments.resume is not None:
        if named is not None or arguments.out is not None:
            raise ValueError("--resume continues a run as it was set up; give no preset and no --out with it")
        if before.model.import_file is not None and config.model.import_file is None:
            raise ValueError(
                f"the run was started with --import {before.model.import_file}; give it again: a run folder does "
                "not run code by itself"
            )
        _report_changes(before, config, accept=arguments.accept_changes)
    elif arguments.accept_changes:
        raise ValueError("--accept-changes is for a run that is continued; give --resume RUN with it")
    elif arguments.out is None and _may_restart():
        raise ValueError(
            "torchrun --max-restarts needs to find the run again; name its folder with --out DIR"
        )


def _train(config: Config, out: Path, *, resume: bool, loggers: list[str], **options: bool) -> None:
    from divconq import train as training
    from divconq.cli.tables import summary
    from divconq.data.images.decoding import UnreadableError

    say(f"training on {config.data.name} into {out}")
    try:
        with StopSignals() as stop:
            records = training.train(config, out, resume=resume, stop=stop, loggers=loggers, **options)
    except KeyboardInterrupt as stopped:
        way = _how_to_continue(out, config, loggers)
        fail(f"stopped; {way}", exit_code(stopped))
    except UnreadableError as error:
        gone = f"{error.file} was removed while the run used it; put it back"
        way = _how_to_continue(out, config, loggers)
        fail(f"{error if error.file.exists() else gone}, then {way}", 2, every_process=True)
    except OSError as error:
        if error.errno not in FULL:
            raise
        fail(
            f"the disk is full ({error}); the saved files are kept: free space, then "
            f"{_how_to_continue(out, config, loggers)}",
            1,
        )
    if is_first_process():
        print(summary(records, config.best_by, config.max_clusters, out))
    if stop.wished:
        fail(f"stopped; the run in {out} is complete", exit_code(stop.stopped()))


def _report_changes(before: Config, now: Config, *, accept: bool) -> None:
    """Print the changed settings of a resumed run. Raise ValueError if one changes the result, unless ``accept``."""
    changes = {name: f"{name} from {old} to {new}" for name, (old, new) in differences(before, now).items()}
    allowed = changes_on_resume(before)
    refused = [change for name, change in changes.items() if name not in allowed]
    if refused and not accept:
        raise ValueError(
            f"a resumed run keeps its settings, but these would change its result: {'; '.join(refused)}; leave them "
            "out, start a new run, or continue with --accept-changes"
        )
    for name, change in changes.items():
        say(f"changed: {change} ({allowed.get(name, 'accepted: the result changes')})")


def _may_restart() -> bool:
    """Return whether torchrun starts this command again if a process dies."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0


def _unfinished(out: Path) -> bool:
    """Return whether torchrun may have started this command before, and its run is not finished."""
    begun = (out / "config.yaml").is_file() and not (out / "model.safetensors").exists()
    return _may_restart() and begun


def _started_again(out: Path, config: Config) -> bool:
    """Return whether torchrun started this command before, and its run is not finished."""
    if not _unfinished(out):
        return False
    _report_changes(read_config(out), config, accept=False)
    return True


def _how_to_continue(out: Path, config: Config, loggers: list[str]) -> str:
    if (out / "config.yaml").is_file():
        words = ["divconq", "train", "--resume", str(out), *(f"--{name}" for name in loggers)]
        if config.model.import_file is not None:
            words += ["--import", str(config.model.import_file)]
        return f"continue with: {shlex.join(words)}"
    return "start again: nothing was written"


def _free_folder(name: str) -> Path:
    name = name.replace(":", "-")  # no colon in a file name on Windows
    folder, number = Path("runs") / name, 2
    while folder.exists():
        folder, number = Path("runs") / f"{name}-{number}", number + 1
    return folder


def _absolute(data: str) -> str:
    return str(Path(data).resolve()) if data and data not in PRESETS and Path(data).exists() else data
