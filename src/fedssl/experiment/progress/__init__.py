"""What a run shows meanwhile: views, loggers, health, stopping."""
