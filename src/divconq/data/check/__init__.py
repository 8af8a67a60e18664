"""Checking a dataset before training: broken files, duplicates, and labels that spoil the scores."""

from divconq.data.check.checking import check_dataset
from divconq.data.check.kinds import DUPLICATE_KINDS, FILE_KINDS, KINDS, LABEL_KINDS, Kind
from divconq.data.check.report import Finding, Report, Split

__all__ = [
    "DUPLICATE_KINDS",
    "FILE_KINDS",
    "KINDS",
    "LABEL_KINDS",
    "Finding",
    "Kind",
    "Report",
    "Split",
    "check_dataset",
]
