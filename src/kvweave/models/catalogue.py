"""Presets: the cache-shaping values of well-known models, as published (``presets/SOURCES.md`` says where).

A preset is a JSON file in the folder ``presets``: ``config`` holds the published keys and nothing else; ``verified`` is
"two" when two or more independent public copies agree on every value that shapes the cache, "one" when a value rests on
one; ``note`` says what to know.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources

from kvweave.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Preset:
    """A well-known model's published values and how far they are verified."""

    name: str
    title: str
    verified: str
    note: str
    config: dict[str, object]


@cache
def presets() -> tuple[str, ...]:
    """The names of all presets, sorted.

    >>> "deepseek-v3" in presets()
    True
    """
    folder = resources.files("kvweave.models").joinpath("presets")
    return tuple(sorted(file.name.removesuffix(".json") for file in folder.iterdir() if file.name.endswith(".json")))


def preset(name: str) -> Preset:
    """The preset of that name; ``ConfigurationError`` when there is none."""
    if name not in presets():
        raise ConfigurationError(f"preset: {name!r} is not known; use one of {', '.join(presets())}")
    text = resources.files("kvweave.models").joinpath("presets", f"{name}.json").read_text(encoding="utf-8")
    return Preset(name=name, **json.loads(text))
