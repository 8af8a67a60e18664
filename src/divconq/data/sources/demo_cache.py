"""Keep the rendered images of the demo dataset in the cache directory: drawing them takes seconds."""

import hashlib
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Generator, Tensor

from divconq.data.images.fingerprints import cache_folder
from divconq.data.sources import demo_rendering
from divconq.data.sources.demo_rendering import Beetles, render
from divconq.io.atomic import write_atomically


def rendered(beetles: Beetles, generator: Generator) -> UInt8[Tensor, "n size size 3"]:
    """Return ``render(beetles, generator)``, from the cache if it was drawn before.

    The generator ends in the state that drawing leaves it in. A cache that is damaged, read-only or full is no error.
    """
    key = _key(beetles, generator)
    try:
        file = cache_folder() / f"demo-{key}.images"
    except ValueError:  # there is no home directory
        return render(beetles, generator)
    if (kept := _read(file, len(beetles))) is None:
        images = render(beetles, generator)
        _write(file, {"images": images, "generator": generator.get_state()})
        return images
    generator.set_state(kept["generator"])
    return kept["images"]


def _key(beetles: Beetles, generator: Generator) -> str:
    """Return a hash of everything the images depend on: parameters, random state, code, torch and processor."""
    digest = hashlib.sha256(Path(demo_rendering.__file__).read_bytes())
    digest.update(f"{torch.__version__} {torch.backends.cpu.get_cpu_capability()}".encode())
    for values in (*(getattr(beetles, field.name) for field in fields(beetles)), generator.get_state()):
        digest.update(values.contiguous().numpy().tobytes())
    return digest.hexdigest()[:24]


def _read(file: Path, count: int) -> dict[str, Tensor] | None:
    """Return the kept images and the state of the generator; None if the file is missing or damaged."""
    from safetensors.torch import load

    try:
        raw = file.read_bytes()
        checksum, content = raw[:32], raw[32:]
        kept = load(content) if hashlib.sha256(content).digest() == checksum else None
        return kept if kept is not None and len(kept["images"]) == count else None
    except Exception:  # a missing or damaged file can raise many kinds of errors
        return None


def _write(file: Path, kept: dict[str, Tensor]) -> None:
    from safetensors.torch import save

    content = save(kept)
    with suppress(OSError):  # the images are drawn again the next time
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, lambda path: path.write_bytes(hashlib.sha256(content).digest() + content))
