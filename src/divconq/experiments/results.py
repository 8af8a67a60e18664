"""Results of finished runs: one JSON object per run, one JSON-lines file per table.

A line holds the settings of the run, its code version and hardware, and its log as columns. It is on disk when
``append_result`` returns. A process that is killed may leave an incomplete line: readers ignore it, and the next
``append_result`` removes it. Folders of older versions, with one ``.json`` file per run, are read as well.
"""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any

from divconq.checks import shown
from divconq.config import upgraded
from divconq.io.atomic import sync_folder

FORMAT = "divconq result 1"
DIGITS = 6  # significant digits of a logged value
SUFFIXES = (".json", ".jsonl")
Columns = dict[str, list[float | None]]
KINDS: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(("table", "row", "code", "hardware", "torch", "date", "name"), (str, "a string")),
    **dict.fromkeys(("settings", "overrides", "files", "metrics"), (dict, "a table")),
    "seed": (int, "a whole number"),
    "seconds": (int | float, "a number"),
}


@dataclass(frozen=True)
class Result:
    """A finished run.

    ``settings`` define the run. ``overrides`` are the settings from the command line. ``files`` are the names of
    files in the settings. ``metrics`` has one list per logged value, with one entry per epoch.
    """

    table: str
    row: str
    seed: int
    settings: dict[str, Any]
    overrides: dict[str, Any]
    files: dict[str, str]
    code: str
    hardware: str
    torch: str
    date: str
    seconds: float
    metrics: Columns
    name: str = ""

    @property
    def cost(self) -> float:
        """Return the seconds of training and division, without evaluation and compilation.

        The cost of a phase is its median time multiplied by the number of times it ran. The median excludes the
        compilation in the first epoch. If epochs differ in length, training costs the median time of an image,
        multiplied by the number of images.
        """
        phases = (self.metrics.get(f"seconds_{phase}", []) for phase in ("train", "divide"))
        spent = [[seconds for seconds in phase if seconds is not None] for phase in phases]
        rates = [rate for rate in self.metrics.get("images_per_s", []) if rate]
        if self.settings.get("epoch_length", "images") != "images" and len(rates) == len(spent[0]):
            images = sum(rate * seconds for rate, seconds in zip(rates, spent.pop(0), strict=True))
            return images / median(rates) + sum(median(phase) * len(phase) for phase in spent if phase)
        return sum(median(phase) * len(phase) for phase in spent if phase)


def columns(records: Sequence[Mapping[str, Any]]) -> Columns:
    """Return a log as one list per value, with one entry per epoch; None if the epoch lacks the value.

    >>> columns([{"epoch": 1, "seconds": {"train": 2.0}}, {"epoch": 2, "seconds": {"train": 1.0}, "recall@1": 0.5}])
    {'epoch': [1, 2], 'seconds_train': [2.0, 1.0], 'recall@1': [None, 0.5]}
    """
    flat = []
    for record in records:
        phases = {f"seconds_{phase}": spent for phase, spent in record.get("seconds", {}).items()}
        flat.append({**{name: value for name, value in record.items() if name != "seconds"}, **phases})
    names = dict.fromkeys(name for record in flat for name in record if _is_number(record[name]))
    return {name: [_short(record.get(name)) for record in flat] for name in names}


def _is_number(value: object) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) < 10**300)


def _short(value: float | None) -> float | None:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def append_result(file: Path, result: Result) -> None:
    """Append a result to a JSON-lines file and wait until it is on disk.

    Several processes may append to one file.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    values = dataclasses.asdict(result)
    values = {"format": FORMAT, "name": values.pop("name"), **values}
    line = json.dumps(values, separators=(",", ":"))
    with file.open("a+b", buffering=0) as stream:
        _lock(stream)
        stream.seek(0)
        before = stream.read()
        whole = _whole_lines(before)
        if len(whole) < len(before):
            stream.truncate(len(whole))
        missing_line_break = whole[len(before) :]
        try:
            _write_all(stream, missing_line_break + line.encode() + b"\n")
            os.fsync(stream.fileno())
        except OSError as error:
            stream.truncate(min(len(before), len(whole)))
            raise OSError(error.errno, error.strerror, str(file)) from error
    sync_folder(file.parent)


def _write_all(stream: IO[bytes], content: bytes) -> None:
    """Write all bytes to a stream without a buffer, which may write a part of them at a time."""
    while content:
        content = content[stream.write(content) :]


def _lock(stream: IO[bytes]) -> None:
    """Lock the file, after waiting for other writers. Closing the file unlocks it."""
    if os.name == "posix":
        import fcntl

        fcntl.flock(stream, fcntl.LOCK_EX)


def _whole_lines(content: bytes) -> bytes:
    r"""Return the content without a last line that was cut short.

    >>> _whole_lines(b'{"a": 1}\n{"b"'), _whole_lines(b'{"a": 1}')
    (b'{"a": 1}\n', b'{"a": 1}\n')
    """
    head, newline, tail = content.rpartition(b"\n")
    try:
        json.loads(tail)
    except ValueError:
        return head + newline
    return content + b"\n"


def read_results(folder: Path) -> list[Result]:
    """Return all results below a folder, the oldest first."""
    files = [path for path in sorted(folder.rglob("*")) if path.suffix in SUFFIXES]
    results = [result for file in files for result in read_result_file(file)]
    return sorted(results, key=lambda result: (result.date, result.name))


def read_result_file(file: Path) -> list[Result]:
    """Return the results in a ``.jsonl`` file, or the one in a ``.json`` file of an older version."""
    content = file.read_bytes()
    if file.suffix == ".json":
        return [_parse_result(str(file), content, file.stem)]
    lines = _whole_lines(content).splitlines()
    return [_parse_result(f"line {number} of {file}", line) for number, line in enumerate(lines, 1)]


def _parse_result(where: str, content: bytes, name: str = "") -> Result:
    try:
        values = json.loads(content.decode("utf-8-sig"))
        if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}")
        result = Result(**{"name": name, **values})
        if problem := _type_problem(result):
            raise ValueError(problem)
        return dataclasses.replace(
            result, settings=upgraded(result.settings), overrides=upgraded(result.overrides)
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{where} is not the result of a run ({error}); remove it or copy it again"
        ) from error


def _type_problem(result: Result) -> str:
    """Return what is wrong with the types of a result, or ""."""
    values, columns = vars(result), result.metrics
    for key, (kind, wanted) in KINDS.items():
        if not isinstance(values[key], kind) or isinstance(values[key], bool):
            return f"{key} must be {wanted}, got {shown(values[key])}"
    for key, column in columns.items():
        if not isinstance(column, list) or not all(value is None or _is_number(value) for value in column):
            return f"{key} in metrics must be a list of numbers, got {shown(column)}"
    epochs = columns.get("epoch", [])
    if any(type(epoch) is not int for epoch in epochs):
        return f"epoch in metrics must be whole numbers, got {shown(epochs)}"
    if any(len(column) != len(epochs) for column in columns.values()):
        return f"all lists in metrics must have one value for each of {len(epochs)} epochs"
    trained = result.settings.get("epochs", 1)
    return "" if isinstance(trained, int) else f"epochs must be a whole number, got {shown(trained)}"
