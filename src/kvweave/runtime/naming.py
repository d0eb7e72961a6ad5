"""Names that nobody else has: engines, and the transports of their ranks."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable

from kvweave.core.layout import EngineLayout
from kvweave.transport.base import Transport

TransportFactory = Callable[[str], Transport]
"""Makes one rank's transport, given a name that no other transport has: ``NixlTransport``, or a network's ``join``."""


def engine_name(role: str) -> str:
    """A new engine id, readable in a log."""
    return f"{role}-{socket.gethostname()[:60]}-{os.getpid()}-{secrets.token_hex(4)}"


def rank_names(engine_id: str, layout: EngineLayout) -> list[str]:
    """One transport name per rank, new with every call."""
    start = secrets.token_hex(4)
    return [f"{engine_id}/{rank.coordinates}/{start}" for rank in layout.ranks]
