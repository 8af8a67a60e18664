"""Dividing the training images into clusters: arrays in, arrays out."""

from divconq.division.bisect import bisect
from divconq.division.kmeans import kmeans
from divconq.division.matching import match
from divconq.division.partition import Partition
from divconq.division.strategies import DIVISIONS, NEEDS_EMBEDDINGS, divide, usable

__all__ = ["Partition", "kmeans", "match", "bisect", "divide", "usable", "DIVISIONS", "NEEDS_EMBEDDINGS"]
