"""Measure the memory that an evaluation takes beyond the embeddings.

    python -m divconq.bench.memory POINTS DIMENSIONS

prints the bytes of an evaluation on a CPU. It runs in its own process and reads the counters of the system.
"""

import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from divconq.evaluation import retrieval_scores

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
KS = (1, 10, 100)
PER_CLASS = 5


def evaluation_memory(n: int, dim: int, device: torch.device) -> int | None:
    """Return the peak bytes of ranking ``n`` points among themselves; None if the system has no counters."""
    return _on_gpu(n, dim, device) if device.type == "cuda" else _in_a_process(n, dim)


def unit_vectors(
    n: int, dim: int, device: torch.device
) -> tuple[Float32[Tensor, "n d"], Int64[Tensor, " n"]]:
    """Return random unit vectors (n, d), made in place, and their class labels (n).

    >>> unit_vectors(10, 4, torch.device("cpu"))[1].tolist()
    [0, 1, 0, 1, 0, 1, 0, 1, 0, 1]
    """
    x = torch.randn(n, dim, generator=torch.Generator(device).manual_seed(0), device=device)
    x /= torch.linalg.vecdot(x, x).sqrt()[:, None]
    return x, torch.arange(n, device=device) % max(n // PER_CLASS, 1)


def _evaluate(x: Tensor, labels: Tensor) -> None:
    retrieval_scores(x, labels, ks=tuple(k for k in KS if k < len(x)))


def _on_gpu(n: int, dim: int, device: torch.device) -> int:
    x, labels = unit_vectors(n, dim, device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    _evaluate(x, labels)
    return torch.cuda.max_memory_allocated(device) - before


def _in_a_process(n: int, dim: int) -> int | None:
    command = [sys.executable, "-m", "divconq.bench.memory", str(n), str(dim)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return int(printed) if printed else None


def _measure_here(n: int, dim: int) -> int:
    """Return the peak bytes of an evaluation in this process. A small evaluation first loads all libraries."""
    _evaluate(*unit_vectors(100, dim, torch.device("cpu")))
    x, labels = unit_vectors(n, dim, torch.device("cpu"))
    with suppress(OSError):
        CLEAR.write_text("5")  # resets the peak
    before = _kilobytes("VmRSS")
    _evaluate(x, labels)
    return max(0, _kilobytes("VmHWM") - before) * 1024


def _kilobytes(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", STATUS.read_text(), flags=re.MULTILINE)
    assert found is not None
    return int(found[1])


if __name__ == "__main__":
    if STATUS.exists():
        print(_measure_here(int(sys.argv[1]), int(sys.argv[2])))
