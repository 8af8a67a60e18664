"""Image files: decoding, caching the decoded images, and placing them in memory."""
