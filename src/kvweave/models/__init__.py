"""From a model's published configuration to what it caches, and presets of well-known models."""
