"""Settings: schema, layers of presets and files, validation, messages."""
