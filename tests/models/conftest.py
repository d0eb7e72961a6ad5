"""Published configurations with changes, and a model's arrays by name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import pytest

from kvweave.core.array import CacheArray
from kvweave.core.model import ModelCache
from kvweave.models import preset


def published_config(name: str, **changes: object) -> dict[str, object]:
    config = copy.deepcopy(preset(name).config)
    nested = config.get("text_config")
    values = nested if isinstance(nested, dict) else config
    for key, value in changes.items():
        if value is ...:
            values.pop(key, None)
        else:
            values[key] = value
    return config


def arrays_by_name(model: ModelCache) -> dict[tuple[str, str], CacheArray]:
    return {(layer.name, array.part): array for layer in model.layers() for array in layer.spec.arrays()}


@pytest.fixture
def published() -> Callable[..., dict[str, object]]:
    """A preset's configuration; a keyword replaces a value (of the text part, if there is one), ``...`` removes it."""
    return published_config


@pytest.fixture
def arrays_of() -> Callable[[ModelCache], Mapping[tuple[str, str], CacheArray]]:
    return arrays_by_name
