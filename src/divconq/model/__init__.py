"""The network f: a backbone with its pooling, and an embedding layer."""

from divconq.model.backbones import Pooling, SmallNet, check_backbone, import_file
from divconq.model.clml import PCA_DIM, CLMLHead, Mixture
from divconq.model.construction import make_model
from divconq.model.embedder import RGB, Embedder, Transform
from divconq.model.gem import GeM

__all__ = [
    "Embedder",
    "make_model",
    "check_backbone",
    "import_file",
    "SmallNet",
    "GeM",
    "CLMLHead",
    "Mixture",
    "PCA_DIM",
    "Pooling",
    "Transform",
    "RGB",
]
