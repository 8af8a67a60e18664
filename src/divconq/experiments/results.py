"""One finished run as one small JSON file: what defines it, where it was made, its figures at every epoch."""

import dataclasses
import hashlib
import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

from divconq import __version__
from divconq.config import Config, upgraded
from divconq.experiments.table import NOT_OF_THE_RESULT, Row, Table
from divconq.io.atomic import write_atomically

FORMAT = "divconq result 1"
DIGITS = 6
Columns = dict[str, list[float | None]]


@dataclass(frozen=True)
class Result:
    """A finished run. ``settings`` define it; ``overrides`` are those set on the command line, not by the table."""

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
    file: str = ""

    @property
    def cost(self) -> float:
        """Seconds of training and division, without evaluation and without compiling.

        Each is the median times their number, since the first of them compile what the next ones find compiled.
        """
        phases = (self.metrics.get(f"seconds_{phase}", []) for phase in ("train", "divide"))
        spent = [[seconds for seconds in phase if seconds is not None] for phase in phases]
        return sum(median(phase) * len(phase) for phase in spent if phase)


def settings(config: Config) -> dict[str, Any]:
    """What defines a run: its config without what does not change its outcome, files by their content.

    >>> settings(Config.of(root=Path("/data"), k_max=8)) == settings(Config.of(device="cpu", k_max=8))
    True
    """
    values = config.settings()
    return portable({name: value for name, value in values.items() if name not in NOT_OF_THE_RESULT})


def portable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON has them, the same on every machine.

    >>> portable({"data": "some/where/photos", "ks": (1, 2)})
    {'data': 'photos', 'ks': [1, 2]}
    """
    plain = {name: _content(value) if isinstance(value, Path) else value for name, value in values.items()}
    if "data" in plain:
        plain["data"] = Path(plain["data"]).name
    return dict(json.loads(json.dumps(plain)))


@lru_cache
def _content(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"there is no file {path}; name an existing one")
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return f"sha256:{digest.hexdigest()}"


def wanted(table: Table, row: Row, seed: int, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of one run of a table, with ``overrides`` in their portable form."""
    return {**settings(table.config(row, seed)), **overrides}


def agree(stored: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a result's settings are those wanted now; a setting newer than the result must have its default.

    >>> agree({"k_max": 4}, {"k_max": 4, "masks": "learned"}), agree({"k_max": 4}, {"k_max": 4, "masks": "fixed"})
    (True, False)
    """
    return stored.keys() <= now.keys() and all(
        stored.get(name, _defaults().get(name)) == value for name, value in now.items()
    )


@lru_cache
def _defaults() -> dict[str, Any]:
    return settings(Config())


def run_name(table: Table, row: Row, seed: int, now: Mapping[str, Any]) -> str:
    """The name of a run's files: readable, and another one when its settings are others."""
    digest = hashlib.sha256(json.dumps(now, sort_keys=True).encode()).hexdigest()
    return f"{table.preset}-{row.name}-{seed}-{digest[:8]}"


def columns(records: Sequence[Mapping[str, Any]]) -> Columns:
    """A run's log, one list a figure instead of one object an epoch; what was not measured is None.

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
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _short(value: float | None) -> float | None:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def write_result(folder: Path, name: str, result: Result) -> Path:
    """Put ``name.json`` into the folder, whole or not at all; a line for each entry, so that it can be read."""
    folder.mkdir(parents=True, exist_ok=True)
    values = {"format": FORMAT, **dataclasses.asdict(result)}
    values.pop("file")
    metrics = values.pop("metrics")
    entries = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items()]
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in metrics.items()]
    entries.append(' "metrics": {\n' + ",\n".join(lines) + "\n }")
    path = folder / f"{name}.json"
    write_atomically(path, lambda file: file.write_text("{\n" + ",\n".join(entries) + "\n}\n"))
    return path


def read_results(folder: Path) -> list[Result]:
    """All results below a folder, the oldest first."""
    results = [read_result(path) for path in sorted(folder.rglob("*.json"))]
    return sorted(results, key=lambda result: (result.date, result.file))


def read_result(path: Path) -> Result:
    """One result; ValueError if the file is not one."""
    try:
        values = json.loads(path.read_text())
        if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}")
        values["settings"] = upgraded(values["settings"])
        return Result(**values, file=path.name)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path} is not the result of a run ({error}); remove it or copy it again"
        ) from error


def code_version(commit: str | None = None) -> str:
    """The commit of this code, ``+changes`` if it was edited since; without a repository the package's version."""
    if commit is not None:
        return commit
    package = Path(__file__).parent.parent

    def git(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["git", "-C", str(package), *words], capture_output=True, text=True, check=False
        )

    try:
        tracked = git("ls-files", "--error-unmatch", "config.py").returncode == 0
        if not tracked:
            return f"divconq {__version__}"
        edited = git("status", "--porcelain", "--", ".").stdout.strip()
        return git("rev-parse", "--short=12", "HEAD").stdout.strip() + ("+changes" if edited else "")
    except OSError:
        return f"divconq {__version__}"


def hardware(device: str) -> str:
    """The name of the GPU, or of the CPU and how many threads of it are used; ``device`` as in ``Config``."""
    import torch

    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if "model name" in line] if info.exists() else []
    cpu = names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()
    return f"{torch.get_num_threads()} threads of {cpu}"
