"""What every other package stands on: errors, files, weights, seeds, settings, registries."""
