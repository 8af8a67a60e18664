"""From stored images to batches: sampling, augmentation, and the test view."""
