"""The ways in which kvweave's NIXL transport can move pieces: each is measured where the transport has the choice."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Any


class Way(StrEnum):
    """How small pieces are moved: as a user would have it (the cost model decides), or forced."""

    AUTO = "auto"
    DIRECT = "direct"
    STAGED = "staged"


_SETTINGS = {Way.AUTO: "auto", Way.DIRECT: "never", Way.STAGED: "always"}
"""Values of the transport's parameter ``staging``."""


def has_choice() -> bool:
    """Whether the transport can gather pieces before they are read."""
    from kvweave.transport.nixl import NixlTransport

    return "staging" in inspect.signature(NixlTransport).parameters


def ways() -> tuple[Way, ...]:
    """The ways that can be measured: ``AUTO`` is always one."""
    return tuple(Way) if has_choice() else (Way.AUTO,)


def transport_factory(way: Way) -> Callable[[str], Any]:
    """Makes transports of that way from unique names."""
    from kvweave.transport.nixl import NixlTransport

    setting = {"staging": _SETTINGS[way]} if has_choice() else {}
    return partial(NixlTransport, **setting)
