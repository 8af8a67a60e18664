"""Improving deep metric learning by divide and conquer, around any loss and any backbone."""

__version__ = "0.1.0"
