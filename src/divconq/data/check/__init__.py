"""Checking a dataset before training: broken files, duplicates, and labels that spoil the scores."""

from divconq.data.check.checking import check_dataset
from divconq.data.check.report import Report

__all__ = ["Report", "check_dataset"]
