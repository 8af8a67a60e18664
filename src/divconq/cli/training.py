"""``divconq train``: a new run, or one that goes on."""

import os
import shlex
from pathlib import Path

import tyro

from divconq.cli.arguments import TrainArguments, flag_value, take_free_flags
from divconq.cli.looking import write_analysis
from divconq.cli.speaking import fail, say, speaks
from divconq.config import MAY_CHANGE, Config, differences, from_yaml
from divconq.io.atomic import FULL
from divconq.presets import PRESETS, preset
from divconq.training.stop_signals import Stopped, StopSignals


def train_command(argv: list[str]) -> None:
    """``divconq train``."""
    named = argv[0] if argv and not argv[0].startswith("-") else None
    argv, loss_args = take_free_flags(argv if named is None else argv[1:], "--loss.")
    argv, miner_args = take_free_flags(argv, "--miner.")
    resume = flag_value(argv, "--resume")
    if resume is not None:
        start = from_yaml(_read(Path(resume) / "config.yaml"))
        if start.model.import_file is not None and flag_value(argv, "--import") is None:
            raise ValueError(
                f"the run was begun with --import {start.model.import_file}; give it again: a run folder does not "
                "make code run by itself"
            )
    else:
        start = preset(named or ("photos" if flag_value(argv, "--data") else "demo"))
    parsed = tyro.cli(TrainArguments, args=argv, prog="divconq train", default=TrainArguments(start))
    config = parsed.config.replace(
        data=_absolute(parsed.config.data.name),
        loss_args={**(start.loss.args if parsed.config.loss.name == start.loss.name else {}), **loss_args},
        miner_args={
            **(start.loss.miner_args if parsed.config.loss.miner == start.loss.miner else {}),
            **miner_args,
        },
        **{
            name: path.resolve()
            for name in ("root", "backbone_weights", "import_file")
            if (path := parsed.config.settings()[name]) is not None
        },
    )
    if parsed.resume is not None:
        if named is not None or parsed.out is not None:
            raise ValueError("--resume continues a run as it was set up; give no preset and no --out with it")
        _name_changes(start, config, accept=parsed.accept_changes)
    elif parsed.accept_changes:
        raise ValueError("--accept-changes is for a run that is continued; give --resume RUN with it")
    elif parsed.out is None and _may_restart():
        raise ValueError(
            "torchrun --max-restarts must find the run that it starts again; name it with --out DIR"
        )
    from divconq.accel.device import pick_device
    from divconq.distributed import on_first, process_group
    from divconq.training.loggers import LOGGERS

    with process_group(pick_device(config.runtime.device)):
        out = parsed.resume or parsed.out or on_first(_free_folder, named or Path(config.data.name).stem)
        again = parsed.resume is not None or on_first(_started_again, out, config)
        _train(config, out, resume=again, loggers=[name for name in LOGGERS if getattr(parsed, name)])
    if parsed.analyze and speaks():
        write_analysis([out], out / "analysis", device=config.runtime.device)


def _train(config: Config, out: Path, *, resume: bool, loggers: list[str]) -> None:
    from divconq import train as training
    from divconq.cli.tables import summary

    say(f"training on {config.data.name} into {out}")
    try:
        with StopSignals() as stop:
            records = training.train(config, out, resume=resume, stop=stop, loggers=loggers)
    except KeyboardInterrupt as stopped:
        way = _how_to_go_on(out, config, loggers)
        fail(f"stopped; {way}", stopped.code if isinstance(stopped, Stopped) else 130)
    except OSError as error:
        if error.errno not in FULL:
            raise
        fail(
            f"the disk is full ({error}); what was saved is kept: free space, then "
            f"{_how_to_go_on(out, config, loggers)}",
            1,
        )
    if speaks():
        print(summary(records, config.best_by, out))


def _name_changes(before: Config, now: Config, *, accept: bool) -> None:
    """Say what a resumed run does otherwise than before; refuse what changes its result, unless accepted."""
    changes = {name: f"{name} from {old} to {new}" for name, (old, new) in differences(before, now).items()}
    refused = [change for name, change in changes.items() if name not in MAY_CHANGE]
    if refused and not accept:
        raise ValueError(
            f"a resumed run keeps its settings, but these would change its result: {'; '.join(refused)}; leave them "
            "out, start a new run, or go on with --accept-changes"
        )
    for name, change in changes.items():
        say(f"changed: {change} ({MAY_CHANGE.get(name, 'accepted: the result changes')})")


def _may_restart() -> bool:
    """Whether torchrun starts this command again if a process dies."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0


def _started_again(out: Path, config: Config) -> bool:
    """Whether torchrun may have started this command before, and the run it made is not at its end."""
    if not _may_restart() or not (out / "config.yaml").is_file() or (out / "model.safetensors").exists():
        return False
    _name_changes(from_yaml(_read(out / "config.yaml")), config, accept=False)
    return True


def _how_to_go_on(out: Path, config: Config, loggers: list[str]) -> str:
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


def _read(path: Path) -> str:
    if not path.is_file():
        raise ValueError(
            f"{path.parent} is not a run folder: it has no {path.name}; name the --out of a training run"
        )
    return path.read_text()
