"""The final model of a run, as one safetensors file that knows its backbone and its input."""

import json
from pathlib import Path
from typing import Any

from divconq.data.images.transform import Transform
from divconq.io.safetensors_files import read_safetensors
from divconq.model import Embedder, make_model


def save_model(model: Embedder, path: Path, settings: dict[str, Any]) -> None:
    """Write the weights, with the ``settings`` that ``load_model`` needs as metadata."""
    from safetensors.torch import save_file

    state = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    save_file(state, path, {"divconq": json.dumps(settings)})


def load_model(path: str | Path) -> Embedder:
    """Return a trained model for inference; ``normalize(model(images))`` is the final embedding.

    ``path`` is a run folder or its ``model.safetensors``. Nothing in the file is executed. ``model.transform(image)``
    makes the input from a file or a PIL image, as in an evaluation.
    """
    path = Path(path)
    path = path / "model.safetensors" if path.is_dir() else path
    state, metadata = read_safetensors(path)
    if "divconq" not in metadata:
        raise ValueError(f"{path} was not written by divconq; name a run folder or its model.safetensors")
    try:
        settings = {"head": "linear", "components": 1} | json.loads(metadata["divconq"])
        kinds = {"backbone": str, "dim": int, "pooling": str, "image_size": int, "resize": int}
        kinds |= {"head": str, "components": int}
        if wrong := [name for name, kind in kinds.items() if type(settings[name]) is not kind]:
            raise TypeError(f"{wrong[0]} is {settings[wrong[0]]!r}")
        parts = {name: settings[name] for name in ("pooling", "head", "components")}
        model = make_model(settings["backbone"], settings["dim"], **parts)
        model.load_state_dict(state)
        decode_size = settings.get("decode_size")  # files of older versions lack it
        if decode_size is not None and type(decode_size) is not int:
            raise TypeError(f"decode_size is {decode_size!r}")
        model.transform = Transform(settings["image_size"], settings["resize"], decode_size)
    except (json.JSONDecodeError, KeyError, TypeError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(
            f"{path} is damaged or from another version of divconq ({reason}); export it again"
        ) from error
    return model.eval()
