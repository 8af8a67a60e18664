"""How well an embedding searches and clusters."""

from divconq.evaluation.evaluate import evaluate
from divconq.evaluation.metrics import nmi, recall_at_1, retrieval_scores
from divconq.evaluation.reid import one_gallery_image

__all__ = ["evaluate", "nmi", "one_gallery_image", "recall_at_1", "retrieval_scores"]
