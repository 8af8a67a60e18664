"""Retrieval scores of a model on a dataset."""

from typing import Literal

from torch import Tensor

from divconq.accel.device import uses_bf16
from divconq.config import Config
from divconq.data.dataset import Dataset, ImageSet, count_matches, known_cameras
from divconq.distributed import on_first
from divconq.evaluation import evaluate, one_gallery_image, recall_at_1
from divconq.model import Embedder
from divconq.training.embedding import Forward, Layer, embed


def check_test_images(
    data: Dataset,
    ks: tuple[int, ...],
    same_camera: Literal["drop", "keep"] = "drop",
    *,
    called: str = "test",
) -> None:
    """Raise ValueError if Recall@k cannot be computed: too few images for the largest k, or no positives."""
    findable = len(data.test) - 1 if data.gallery is None else len(data.gallery)
    if findable < max(ks):
        raise ValueError(
            f"Recall@{max(ks)} needs {max(ks)} images in the gallery, and a {called} query has {findable}; "
            f"add {called} images or lower --ks"
        )
    if count_matches(data.test, data.gallery, same_camera=same_camera).any():
        return
    if count_matches(data.test, data.gallery, same_camera="keep").any():
        raise ValueError(
            f"no {called} image has a positive from another camera, and positives from the same camera are dropped; "
            "add images from other cameras, or use --same-camera keep"
        )
    raise ValueError(
        f"no {called} image has a positive, another image of its class; add images to the {called} classes"
    )


def embed_images(
    config: Config,
    model: Embedder,
    images: ImageSet,
    mask: Tensor | None = None,
    *,
    features: bool = False,
    fast: Forward | None = None,
    progress: str | None = None,
) -> Tensor:
    """Return the unit vectors of all images in the test view of ``config``."""
    layer: Layer = "features" if features else "embedding"
    return embed(
        model,
        images,
        mask,
        size=config.data.image_size,
        resize=config.data.resize,
        decode_size=config.data.decode_size,
        layer=layer,
        bf16=uses_bf16(config.runtime.precision, model.mean.device),
        fast=fast,
        progress=progress,
    )


def search_scores(
    config: Config,
    model: Embedder,
    mask: Tensor | None,
    test: ImageSet,
    gallery: ImageSet | None = None,
    *,
    gallery_draws: int = 0,
    fast: Forward | None = None,
    progress: str | None = None,
) -> dict[str, float]:
    """Return the scores of the test images as queries, in the gallery or, without one, among each other.

    ``reid_recall@k`` is the mean over ``gallery_draws`` random galleries of one test image per class.
    """
    x = embed_images(config, model, test, mask, fast=fast, progress=progress)
    found = None
    if gallery is not None:
        found = embed_images(config, model, gallery, mask, fast=fast, progress=progress)
    return on_first(_scores, config, x, found, test, gallery, gallery_draws)


def train_recall(config: Config, x: Tensor, train: ImageSet) -> dict[str, float]:
    """Return ``train_recall@1`` of the training embeddings ``x`` among each other; empty if no image has a positive."""
    if not count_matches(train, None, same_camera=config.evaluation.same_camera).any():
        return {}
    return on_first(_train_recall, config, x, train)


def _train_recall(config: Config, x: Tensor, train: ImageSet) -> dict[str, float]:
    cameras = known_cameras(train, None) if config.evaluation.same_camera == "drop" else None
    return {"train_recall@1": recall_at_1(x, train.labels, cameras and cameras[0])}


def _scores(
    config: Config,
    x: Tensor,
    found: Tensor | None,
    test: ImageSet,
    gallery: ImageSet | None,
    gallery_draws: int,
) -> dict[str, float]:
    """Return the scores of embeddings."""
    cameras = known_cameras(test, gallery) if config.evaluation.same_camera == "drop" else None
    scores = evaluate(
        x,
        test.labels,
        found,
        None if gallery is None else gallery.labels,
        query_cameras=cameras and cameras[0],
        gallery_cameras=None if gallery is None else cameras and cameras[1],
        ks=config.evaluation.ks,
        with_nmi=config.evaluation.nmi,
        nmi_runs=config.evaluation.nmi_runs,
        seed=config.optimisation.seed,
    )
    ks = tuple(k for k in config.evaluation.ks if k <= len(test.labels.unique()))
    if gallery_draws and ks:
        drawn = one_gallery_image(x, test.labels, draws=gallery_draws, seed=config.optimisation.seed, ks=ks)
        scores |= {f"reid_{name}": score for name, score in drawn.items()}
    return scores
