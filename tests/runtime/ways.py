"""NIXL transports for tests, in every way in which they read: ``parametrize("transport", [..., *over_nixl()])``."""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import Any

import pytest

WAYS: dict[str, dict[str, Any]] = {
    "copied": {"staging": "never"},
    "direct": {"staging": "never", "same_host": False},
    "staged": {"staging": "always", "same_host": False},
    "staged-copied": {"staging": "always"},
}
"""Parameters of ``NixlTransport``."""


def nixl_by(way: str) -> Any:
    """What makes NIXL transports of this way."""
    from kvweave.transport.nixl import NixlTransport

    return partial(NixlTransport, **WAYS[way])


def over_nixl() -> list[Any]:
    """The names of all ways, skipped where NIXL is not installed."""
    lacking = importlib.util.find_spec("nixl") is None
    skipped = pytest.mark.skipif(lacking, reason="nixl is not installed")
    return [pytest.param(way, marks=skipped) for way in WAYS]


def transport_of(name: str) -> Any:
    """What makes transports of this name; None for ``memory``, which pairs have by themselves."""
    return None if name == "memory" else nixl_by(name)
