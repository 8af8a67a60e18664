"""The origin of a result: code version and hardware."""

import platform
import subprocess
from pathlib import Path

from divconq import __version__


def code_version(commit: str | None = None) -> str:
    """Return the commit of this code, or the version of the package outside a repository.

    ``+changes`` is added if the package was edited since the commit. ``commit``, if given, is returned unchanged.
    """
    if commit is not None:
        return commit
    package = Path(__file__).parent.parent

    def git(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["git", "-C", str(package), *words], capture_output=True, text=True, check=False
        )

    try:
        tracked = git("ls-files", "--error-unmatch", "train.py").returncode == 0
        if not tracked:
            return f"divconq {__version__}"
        edited = git("status", "--porcelain", "--", ".").stdout.strip()
        return git("rev-parse", "--short=12", "HEAD").stdout.strip() + ("+changes" if edited else "")
    except OSError:
        return f"divconq {__version__}"


def hardware(device: str) -> str:
    """Return the name of the GPU, or the name of the CPU and the number of threads in use.

    ``device`` is the setting: auto, cpu or cuda.
    """
    import torch

    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if "model name" in line] if info.exists() else []
    cpu = names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()
    return f"{torch.get_num_threads()} threads of {cpu}"
