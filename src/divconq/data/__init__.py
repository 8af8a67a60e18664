"""Datasets: reading images from disk, decoding and caching them, drawing training batches."""

from divconq.data.dataset import Dataset, ImageSet, ImageStore, InMemory, subset
from divconq.data.held_out import drop_singletons, hold_out, thin_out
from divconq.data.sources.registry import is_dataset, open_dataset

__all__ = [
    "Dataset",
    "ImageSet",
    "ImageStore",
    "InMemory",
    "drop_singletons",
    "hold_out",
    "is_dataset",
    "open_dataset",
    "subset",
    "thin_out",
]
