"""The ways in which kvweave's NIXL transport can move pieces on one machine; each is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import Any


class Way(StrEnum):
    """As the cost model decides; by the system's own copies; by NIXL, piece by piece; gathered by the source."""

    AUTO = "auto"
    COPIED = "copied"
    DIRECT = "direct"
    STAGED = "staged"


USUAL = Way.AUTO
"""What a user has who sets nothing."""
_SETTINGS: Mapping[Way, Mapping[str, Any]] = {
    Way.AUTO: {},
    Way.COPIED: {"staging": "never"},
    Way.DIRECT: {"staging": "never", "same_host": False},
    Way.STAGED: {"staging": "always"},
}
"""What a transport of that way is given."""


def transport_factory(way: Way) -> Callable[..., Any]:
    """Makes transports of that way from unique names, and whatever else ``NixlTransport`` takes."""
    from kvweave.transport.nixl import NixlTransport

    return partial(NixlTransport, **_SETTINGS[way])
