"""What a run shows while it goes on: views, loggers, health, stopping."""
