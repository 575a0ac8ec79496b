"""A run from its settings: config, build, loop, records, progress."""
