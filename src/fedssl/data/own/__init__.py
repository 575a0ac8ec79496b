"""A user's own images: layout, found, decoding, cache."""
