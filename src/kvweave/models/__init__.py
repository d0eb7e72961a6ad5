"""From a model's published configuration to what it caches, and presets of well-known models.

>>> import kvweave.models
>>> [group.name for group in kvweave.models.load("gemma-3-27b").groups]
['full', 'window.1024']
"""

from kvweave.models.catalogue import Preset, preset, presets
from kvweave.models.description import GroupDescription, ModelDescription, describe_model
from kvweave.models.loading import describe, from_config, load
from kvweave.models.setting import CacheOptions

__all__ = [
    "CacheOptions",
    "GroupDescription",
    "ModelDescription",
    "Preset",
    "describe",
    "describe_model",
    "from_config",
    "load",
    "preset",
    "presets",
]
