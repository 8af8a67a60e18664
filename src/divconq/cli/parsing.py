"""Parse the command line with tyro."""

import contextlib
import dataclasses
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import tyro
from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, Positional, subcommand
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from divconq import __version__
from divconq.checks import did_you_mean
from divconq.cli.arguments import (
    AnalyzeArguments,
    BenchArguments,
    CompareArguments,
    DataArguments,
    EmbedArguments,
    EvalArguments,
    PresetsArguments,
    ReproduceArguments,
    TrainArguments,
)
from divconq.config import PLACES, Config, SettingError, read_config
from divconq.config.nested import SECTIONS
from divconq.config.sections import flag_name
from divconq.io.yaml_values import read_yaml
from divconq.presets import PRESETS, preset

DESCRIPTION = f"""divconq {__version__}: train image-retrieval embeddings by divide and conquer

  divconq train PRESET [flags]         train; the presets are {", ".join(PRESETS)}
  divconq train --data FOLDER [flags]  train on your own photos, a folder of class folders
  divconq train --resume RUN           continue a run that was stopped
  divconq COMMAND --help               explain the flags, for example: divconq train cub --help"""

NUMBER = re.compile(r"[-+]?([0-9.]+([eE][-+]?[0-9]+)?|inf|nan)")

ARGUMENTS: dict[str, type[Any]] = {
    "train": TrainArguments,
    "eval": EvalArguments,
    "embed": EmbedArguments,
    "analyze": AnalyzeArguments,
    "compare": CompareArguments,
    "data": DataArguments,
    "reproduce": ReproduceArguments,
    "bench": BenchArguments,
    "presets": PresetsArguments,
}


@dataclass(frozen=True)
class Start:
    """The arguments that set the defaults of all others."""

    words: Positional[tuple[str, ...]] = ()
    data: str | None = None
    resume: Path | None = None
    k_max: str | None = None
    alpha: str | None = None
    beta: str | None = None
    version: bool = False


def parse(argv: list[str]) -> tuple[Start, Any, dict[str, dict[str, Any]]]:
    """Return the start, the arguments of the command, and the arguments of the loss and the miner."""
    start, _ = _tyro(Start, argv, add_help=False)
    words = start.words
    if words == ("help",):
        words, argv = (), ["--help"]
    if words and words[0] not in ARGUMENTS:
        hint = did_you_mean(words[0], ARGUMENTS)
        raise ValueError(f"unknown command {words[0]!r}: choose one of {', '.join(ARGUMENTS)}{hint}")
    if start.version:
        print(f"divconq {__version__}")
        raise SystemExit(0)
    kinds = {name: Annotated[kind, subcommand(name)] for name, kind in ARGUMENTS.items()}
    if words[:1] == ("train",):
        config = starting_config(start)
        if start.resume is not None:
            config = config.replace(import_file=None)  # a run folder must not execute code by itself
        default = TrainArguments.starting_from(config)
        kinds["train"] = Annotated[TrainArguments, subcommand("train", default=default)]
    arguments, unknown = _tyro(Union[tuple(kinds.values())], argv or ["--help"])  # noqa: UP007
    return start, arguments, free_arguments(unknown, arguments)


def starting_config(start: Start) -> Config:
    """Return the settings before any flag: those of the resumed run or of a preset."""
    if start.resume is not None:
        return read_config(start.resume)
    named = start.words[1] if len(start.words) > 1 else None
    return preset(named or ("demo" if start.data is None else "photos"))


def _tyro(kind: Any, argv: list[str], **options: Any) -> tuple[Any, list[str]]:  # noqa: ANN401
    """Parse the words. An error is one sentence, without the frame that tyro prints."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return tyro.cli(
                kind,
                args=argv,
                prog="divconq",
                description=DESCRIPTION,
                config=(OmitArgPrefixes, OmitSubcommandPrefixes),
                return_unknown_args=True,
                registry=_registry(),
                **options,
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        error = stop.__context__
        while error is not None:
            if isinstance(error, SettingError):
                raise error from None
            error = error.__context__
        raise ValueError(f"{_sentence(printed.getvalue())}; see --help") from None


def _sentence(framed: str) -> str:
    r"""Return what tyro prints about an error in a frame, without the frame and the help after it.

    >>> _sentence("╭─ Missing ──╮\n│ Missing value │\n│ of --k. │\n│ ───── │\n│ Run --help │")
    'Missing value of --k'
    """
    lines = [line.strip("│ ") for line in framed.splitlines()[1:]]
    end = next(
        (number for number, line in enumerate(lines) if line.startswith(("─", "╰", "Got errors"))), len(lines)
    )
    return " ".join(" ".join(lines[:end]).split()).rstrip(".")


def _registry() -> ConstructorRegistry:
    """Return parsing rules that accept wrong choices and numbers, so that ``Section`` reports the error."""
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def unchecked(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        choices = get_args(info.type) if get_origin(info.type) is Literal else ()
        if not choices and info.type not in (int, float):
            return None

        def read(words: list[str]) -> object:
            plain = NUMBER.fullmatch(words[0])  # Python also reads 1_000 and digits of other scripts
            try:
                return info.type(words[0]) if plain and not choices else words[0]
            except ValueError:
                return words[0]

        return PrimitiveConstructorSpec(
            nargs=1,
            metavar=f"{{{','.join(choices)}}}" if choices else info.type.__name__.upper(),
            instance_from_str=read,
            is_instance=lambda value: value in choices if choices else isinstance(value, info.type),
            str_from_instance=lambda value: [str(value)],
        )

    return registry


def free_arguments(unknown: list[str], arguments: Any) -> dict[str, dict[str, Any]]:  # noqa: ANN401
    """Return the arguments of the loss and the miner, which tyro does not know, such as ``--loss.alpha 2``.

    >>> free_arguments(["--loss.alpha", "1e-1", "--miner.margin=2"], TrainArguments())
    {'loss': {'alpha': 0.1}, 'miner': {'margin': 2}}
    """
    free: dict[str, dict[str, Any]] = {"loss": {}, "miner": {}}
    words = iter(unknown)
    for word in words:
        flag, equals, value = word.partition("=")
        owner, _, name = flag.removeprefix("--").partition(".")
        if owner not in free or not name or not isinstance(arguments, TrainArguments):
            kind = "flag" if flag.startswith("-") else "word"
            raise ValueError(
                f"unknown {kind} {flag}{did_you_mean(flag, _flags(arguments)) or '; see --help'}"
            )
        value = value if equals else next(words, "")
        if not value or value.startswith("--"):
            raise ValueError(f"{word} needs a value, for example {flag} 0.1")
        free[owner][name.replace("-", "_")] = read_yaml(value, flag)
    return free


def _flags(arguments: Any) -> list[str]:  # noqa: ANN401
    fields = list(dataclasses.fields(arguments))
    if isinstance(arguments, TrainArguments):
        free = ("loss_args", "miner_args")  # given as --loss.NAME and --miner.NAME
        fields = [item for item in fields if item.name not in SECTIONS]
        fields += [item for name, (_, item) in PLACES.items() if name not in free]
    return [f"--{flag_name(item).replace('_', '-')}" for item in fields]
