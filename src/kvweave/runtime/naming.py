"""Names that nobody else has: engines, and the transports of their ranks."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Sequence

from kvweave.core.layout import EngineLayout
from kvweave.errors import LocalProtocolError, RemoteProtocolError
from kvweave.runtime.keys import CurveKeys, fingerprint, owns
from kvweave.transport.base import Transport

TransportFactory = Callable[[str], Transport]
"""Makes one rank's transport, given a name that no other transport has: ``NixlTransport``, or a network's ``join``."""


MOST_ENGINE_ID_BYTES = 180
"""With the fingerprint of a key behind it an id has 200 at most, which is what a message carries."""


def checked_engine_id(role: str, engine_id: str | None, keys: CurveKeys | None = None) -> str:
    """The given id, or a new one; with keys, its end is the own key's fingerprint.

    Raises ``LocalProtocolError`` for one that no message can carry.
    """
    if engine_id is not None and not 0 < len(engine_id.encode()) <= MOST_ENGINE_ID_BYTES:
        raise LocalProtocolError(f"engine_id: {engine_id[:40]!r} must have 1 to {MOST_ENGINE_ID_BYTES} bytes")
    made = engine_name(role) if engine_id is None else engine_id
    return made if keys is None else keys.bound_id(made)


def require_own_name(engine_id: str, key: str) -> None:
    """Raises ``RemoteProtocolError`` when an engine with this key has another one's name; without keys, never."""
    if key and not owns(key, engine_id):
        raise RemoteProtocolError(
            f"engine id: {engine_id!r} does not end with {fingerprint(key)}, the fingerprint of the key that it came "
            "with; no engine can speak as another one"
        )


def engine_name(role: str) -> str:
    """A new engine id, readable in a log."""
    return f"{role}-{socket.gethostname()[:60]}-{os.getpid()}-{secrets.token_hex(4)}"


def rank_names(engine_id: str, layout: EngineLayout) -> list[str]:
    """One transport name per rank, new with every call."""
    start = secrets.token_hex(4)
    return [f"{engine_id}/{rank.coordinates}/{start}" for rank in layout.ranks]


def require_workers(engine_id: str, layout: EngineLayout, workers: Sequence[object]) -> None:
    """Raises ``LocalProtocolError`` unless there is one worker per rank."""
    if len(workers) != len(layout.ranks):
        raise LocalProtocolError(
            f"engine {engine_id}: {len(workers)} workers for {len(layout.ranks)} ranks; "
            "give a transport, or one worker's link per rank"
        )
