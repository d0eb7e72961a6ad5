"""NIXL transports for tests, reading directly and staged: ``parametrize("transport", [..., *over_nixl()])``."""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import Any

import pytest

STAGINGS = {"direct": "never", "staged": "always"}


def staged_by(staging: str) -> Any:
    """What makes NIXL transports of this way."""
    from kvweave.transport.nixl import NixlTransport

    return partial(NixlTransport, staging=staging)


def over_nixl() -> list[Any]:
    """The names ``nixl never`` and ``nixl always``, skipped where NIXL is not installed."""
    lacking = importlib.util.find_spec("nixl") is None
    skipped = pytest.mark.skipif(lacking, reason="nixl is not installed")
    return [pytest.param(f"nixl {way}", id=f"nixl {name}", marks=skipped) for name, way in STAGINGS.items()]


def transport_of(name: str) -> Any:
    """What makes transports of this name; None for ``memory``, which pairs have by themselves."""
    return None if name == "memory" else staged_by(name.split()[1])
