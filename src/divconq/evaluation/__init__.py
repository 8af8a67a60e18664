"""How well an embedding searches and clusters."""

from divconq.evaluation.evaluate import evaluate
from divconq.evaluation.metrics import nmi, retrieval_scores

__all__ = ["evaluate", "nmi", "retrieval_scores"]
