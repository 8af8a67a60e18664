"""Scores of an embedding: how well it searches and clusters."""

from divconq.evaluation.metrics import nmi
from divconq.evaluation.reid import one_gallery_image
from divconq.evaluation.retrieval import evaluate, recall_at_1, retrieval_scores
from divconq.evaluation.scores import METRICS, Metric

__all__ = [
    "METRICS",
    "Metric",
    "evaluate",
    "nmi",
    "one_gallery_image",
    "recall_at_1",
    "retrieval_scores",
]
