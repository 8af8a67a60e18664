"""Image files: decoding, the cache of decoded images, and where they are kept in memory."""
