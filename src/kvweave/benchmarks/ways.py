"""The ways in which kvweave's NIXL transport can move pieces; each is measured."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Any


class Way(StrEnum):
    """How small pieces are moved: as the cost model decides, or forced."""

    AUTO = "auto"
    DIRECT = "direct"
    STAGED = "staged"


USUAL = Way.AUTO
"""What a user has who sets nothing."""
_SETTINGS = {Way.AUTO: "auto", Way.DIRECT: "never", Way.STAGED: "always"}
"""Values of the transport's parameter ``staging``."""


def transport_factory(way: Way) -> Callable[[str], Any]:
    """Makes transports of that way from unique names."""
    from kvweave.transport.nixl import NixlTransport

    return partial(NixlTransport, staging=_SETTINGS[way])
