"""Build the network f by the names of its parts."""

from pathlib import Path

from divconq.checks import check_choice
from divconq.io.safetensors_files import load_backbone
from divconq.model.backbones import Pooling, check_backbone, make_small, make_timm
from divconq.model.embedder import RGB, Embedder
from divconq.model.gem import GeM


def make_model(
    backbone: str,
    dim: int,
    *,
    pretrained: bool = False,
    weights: Path | None = None,
    pooling: Pooling = "avg",
    head: str = "linear",
    components: int = 1,
    dropout: float = 0.01,
    mean: RGB | None = None,
    std: RGB | None = None,
    freeze_batchnorm: bool = True,
) -> Embedder:
    """Return an ``Embedder`` with a timm backbone, or with the backbone ``small``.

    The backbone loads the local ``.safetensors`` file ``weights`` if given, else timm's download if ``pretrained``.
    ``mean`` and ``std`` default to the metadata of the file, else to those of the backbone.
    The head ``clml`` has ``components`` linear layers, see ``CLMLHead``.
    """
    check_choice("head", head, ("linear", "clml"))
    check_backbone(backbone, pooling, pretrained=pretrained, weights=weights)
    if backbone == "small":
        network, features, own_mean, own_std = make_small(pooling)
    else:
        network, features, own_mean, own_std = make_timm(backbone, pooling, pretrained and weights is None)
    if weights is not None:
        exponents = [f"{path}.p" for path, module in network.named_modules() if isinstance(module, GeM)]
        metadata = load_backbone(network, weights, optional=exponents)
        own_mean, own_std = _colour(metadata, "mean", own_mean), _colour(metadata, "std", own_std)
    return Embedder(
        network,
        features,
        dim,
        components=components if head == "clml" else None,
        dropout=dropout,
        mean=mean or own_mean,
        std=std or own_std,
        freeze_batchnorm=freeze_batchnorm,
    )


def _colour(metadata: dict[str, str], name: str, default: RGB) -> RGB:
    if name not in metadata:
        return default
    try:
        red, green, blue = map(float, metadata[name].split(","))
    except ValueError:
        raise ValueError(
            f"the file's {name} must be three numbers, got {metadata[name]!r}; give --{name} R G B"
        ) from None
    return red, green, blue
