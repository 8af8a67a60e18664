"""From stored images to training batches: which images, which random changes, how they are seen."""
