"""The chapters of the report. Each has one module, with its template beside it, and one entry in ``CHAPTERS``."""

from typing import Any

from divconq.analysis.chapters.chapter import Chapter
from divconq.analysis.chapters.clusters import CLUSTERS
from divconq.analysis.chapters.errors import ERRORS
from divconq.analysis.chapters.projection import PROJECTION
from divconq.analysis.chapters.spaces import SPACES
from divconq.analysis.chapters.subspaces import SUBSPACES
from divconq.analysis.chapters.training import TRAINING

CHAPTERS: list[Chapter[Any]] = [TRAINING, CLUSTERS, SUBSPACES, SPACES, PROJECTION, ERRORS]
