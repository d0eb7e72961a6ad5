"""Where a decode engine describes itself: observers may ask how it is laid out, and for nothing else.

A decode engine listens nowhere unless it is given an address; ``kvweave check`` asks both engines of a pair there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvweave.core.layout import EngineLayout
from kvweave.errors import RemoteProtocolError
from kvweave.protocol.codec import decode, encode
from kvweave.protocol.effects import Send
from kvweave.protocol.handshake import Reception
from kvweave.protocol.messages import HandshakeRequest
from kvweave.runtime.allowance import Allowance
from kvweave.runtime.control import ControlServer
from kvweave.runtime.metrics import Recorder
from kvweave.runtime.naming import require_own_name

MOST_BYTES = 16 << 20
BYTES_PER_SECOND = 1 << 20


class Desk:
    """Answers observers; one thread calls it."""

    def __init__(self, server: ControlServer, engine_id: str, layout: EngineLayout, recorder: Recorder) -> None:
        self._server = server
        self._reception = Reception(engine_id, layout, (), 1.0)
        self._recorder = recorder
        self._allowance = Allowance(MOST_BYTES, BYTES_PER_SECOND)

    def sockets(self) -> Sequence[Any]:
        """What to wait on."""
        return self._server.sockets()

    def poll(self, now: float) -> None:
        """Answers who has asked since; what is no question of an observer is counted."""
        for caller, data in self._server.receive():
            try:
                message = decode(data)
                if not isinstance(message, HandshakeRequest):
                    raise RemoteProtocolError(f"observer: {type(message).__name__} is no question of one")
                require_own_name(message.engine_id, caller.key)
            except RemoteProtocolError:
                self._recorder.add("malformed_messages")
                continue
            if self._allowance.take(now, caller.identity, max(self._reception.nbytes, 1024)):
                for effect in self._reception.receive(now, caller, message):
                    if isinstance(effect, Send):
                        self._server.send(caller, encode(effect.message))
        for turned_away in self._server.take_turned_away()[0]:
            self._recorder.add("turned_away", turned_away.reason)

    def close(self) -> None:
        """Ends in bounded time."""
        self._server.close()
