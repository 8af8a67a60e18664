"""Builds the parts of a run from a config: data, network, step, optimiser, embedding pass, scores, loggers."""
