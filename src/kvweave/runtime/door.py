"""The door: who may connect to a control channel, decided before the first byte is taken from him or sent to him.

ZeroMQ asks for each connection (its authentication protocol ZAP, RFC 27) and waits with everything else until the
answer. The answer comes from the thread that polls the channel, so nothing here is shared. With keys an engine must
have an allowed one, and prove it; its host must be allowed in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import zmq

from kvweave.runtime.addresses import PeerList
from kvweave.runtime.keys import CurveKeys

DOMAIN = b"kvweave"
MOST_ANSWERED_AT_ONCE = 64
MOST_REMEMBERED = 100
"""Turned away callers between two looks; more are counted only."""

_ENDPOINT = "inproc://zeromq.zap.01"
_FRAMES_BEFORE_CREDENTIALS = 6


class TurnedAway(NamedTuple):
    """A caller who may not connect: his host, his key where he proved to have one, and what to do about it."""

    host: str
    key: str
    reason: str
    remedy: str


class Door:
    """Answers for all sockets of one context; open it before they are bound."""

    def __init__(self, context: zmq.Context[Any], peers: PeerList, keys: CurveKeys | None) -> None:
        self._peers = peers
        self._keys = keys
        self._allowed = frozenset() if keys is None else frozenset(keys.allowed.values())
        self._turned_away: list[TurnedAway] = []
        self._unremembered = 0
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(_ENDPOINT)

    def guard(self, socket: zmq.Socket[bytes]) -> None:
        """Puts a listening socket behind this door; before it is bound."""
        socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
        if self._keys is not None:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.secret.encode())

    def answer(self) -> None:
        """Lets in and turns away who has called since."""
        for _ in range(MOST_ANSWERED_AT_ONCE):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self.socket.send_multipart(self._answer(frames))

    def take_turned_away(self) -> tuple[list[TurnedAway], int]:
        """Who was turned away since the last look, and how many more there were."""
        taken = self._turned_away, self._unremembered
        self._turned_away, self._unremembered = [], 0
        return taken

    def close(self) -> None:
        """Closes it; nobody is let in any more."""
        self.socket.close(linger=0)

    def _answer(self, frames: Sequence[bytes]) -> list[bytes]:
        version, request, _, address, _, mechanism = frames[:_FRAMES_BEFORE_CREDENTIALS]
        host = address.decode("ascii", "replace").removeprefix("::ffff:")
        key = zmq_key(frames[-1]) if mechanism == b"CURVE" else ""
        turned_away = self._judge(host, key)
        if turned_away is None:
            return [version, request, b"200", b"", key.encode(), b""]
        if len(self._turned_away) < MOST_REMEMBERED:
            self._turned_away.append(turned_away)
        else:
            self._unremembered += 1
        return [version, request, b"400", turned_away.reason.encode(), b"", b""]

    def _judge(self, host: str, key: str) -> TurnedAway | None:
        if not self._peers.allows(host):
            return TurnedAway(host, key, "unknown_host", f"add it: peers=[{host!r}]")
        if self._keys is not None and key not in self._allowed:
            return TurnedAway(host, key, "unknown_key", "put its .key file into the folder of allowed_keys")
        return None


def zmq_key(raw: bytes) -> str:
    """A key of 32 bytes in 40 letters; empty for anything else."""
    return zmq.utils.z85.encode(raw).decode() if len(raw) == 32 else ""
