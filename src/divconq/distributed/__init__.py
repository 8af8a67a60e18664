"""Several processes that train as one, under torchrun."""
