"""Read weights from safetensors files. Nothing in a file is executed."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

CLASSIFIERS = ("fc.", "classifier.", "head.", "last_linear.")


def load_backbone(network: nn.Module, path: Path, optional: Collection[str] = ()) -> dict[str, str]:
    """Load the weights of a backbone from a file, without its classifier. Return the metadata of the file.

    Tensors with ``optional`` names may be missing.
    """
    state, metadata = read_safetensors(path)
    wanted = network.state_dict()
    state = {
        name: value for name, value in state.items() if name in wanted or not name.startswith(CLASSIFIERS)
    }
    missing = sorted(
        name
        for name in wanted
        if name not in state and name not in optional and not name.endswith("num_batches_tracked")
    )
    foreign = sorted(name for name in state if name not in wanted)
    shapes = sorted(
        name for name, value in state.items() if name in wanted and value.shape != wanted[name].shape
    )
    if missing or foreign or shapes:
        counts = f"{len(missing)} missing, {len(foreign)} unknown, {len(shapes)} with another shape"
        example = (missing or foreign or shapes)[0]
        made_for = repr(metadata["architecture"]) if "architecture" in metadata else "another architecture"
        raise ValueError(
            f"{path} does not fit the backbone ({counts}, for example {example!r}); "
            f"it was made for {made_for}: set --backbone to match"
        )
    network.load_state_dict(state, strict=False)
    return metadata


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return all tensors and the metadata of a safetensors file. A damaged file raises ValueError."""
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def check_safetensors(path: Path) -> None:
    """Raise ValueError if a file is missing or not a safetensors file. Reads only its header."""
    with _opened(path):
        pass


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise ValueError(f"there is no file {path}; name an existing .safetensors file")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{path} is not a whole safetensors file ({error}); copy it again, or convert weights of another format "
            "with safetensors.torch.save_file"
        ) from error
