"""From a config to the parts of a run: data, network, step, optimiser, embedding pass, scores, loggers."""
