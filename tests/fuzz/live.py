"""Broken messages and broken connections against engines that are at work: they must go on working.

A prefill engine hears everything that the decoders hear, half messages and floods, over real sockets; a decode engine
is answered so by a peer that lies. Between them the two engines move requests, and every byte is looked at.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass

import zmq

from kvweave.errors import KVWeaveError
from kvweave.protocol.codec import encode
from kvweave.protocol.messages import EngineRole, HandshakeReply, HandshakeRequest
from kvweave.protocol.reference import OfferReference
from tests.fuzz.targets import FROM_DECODE, FROM_PREFILL, Target, targets
from tests.runtime.pair import PATIENCE, TARGET_BLOCKS, Pair

FLOOD = 2_000
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)


@dataclass(slots=True)
class Told:
    """How much the engines were told, and how many requests came through meanwhile."""

    messages: int = 0
    connections: int = 0
    requests: int = 0


class Hostile:
    """Everything that a peer can send, without a care for what it gets."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        named = {target.name: target for target in targets()}
        self._to_prefill, self._to_decode = named["prefill side"], named["decode side"]
        self._context = zmq.Context()

    def close(self) -> None:
        self._context.destroy(linger=0)

    def speak(self, address: str, number: int) -> int:
        """Some messages on a connection of its own, half of the time after a proper handshake."""
        with self._context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.connect(f"tcp://{address}")
            if self._random.random() < 0.5:
                dealer.send(encode(HandshakeRequest(1, "hostile", EngineRole.DECODE, self._random.choice((1, 4096)))))
            for _ in range(number):
                dealer.send_multipart(list(self._frames(self._to_prefill, FROM_DECODE)))
            if self._random.random() < 0.5:
                dealer.poll(100)
        return number

    def shout(self, address: str) -> int:
        """A flood of whole messages of the costly kinds, never reading an answer."""
        flood = encode(self._random.choice(FROM_DECODE))
        with self._context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.setsockopt(zmq.SNDHWM, FLOOD)
            dealer.connect(f"tcp://{address}")
            for _ in range(FLOOD):
                try:
                    dealer.send(flood, zmq.NOBLOCK)
                except zmq.Again:
                    break
        return FLOOD

    def break_off(self, address: str) -> int:
        """A raw connection with half a greeting, half a message, a length that is a lie, or noise."""
        host, _, port = address.rpartition(":")
        parts = [
            GREETING[: self._random.randrange(len(GREETING))],
            GREETING + self._random.randbytes(200),
            GREETING + b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER" + b"\x02" + struct.pack(">Q", 2**62),
            self._random.randbytes(1000),
        ]
        with socket.create_connection((host, int(port)), timeout=5) as raw:
            raw.sendall(self._random.choice(parts))
        return 1

    def lie(self) -> Iterator[str]:
        """A prefill engine's address where everything is answered with something; runs while it is iterated."""
        with self._context.socket(zmq.ROUTER) as router:
            router.setsockopt(zmq.LINGER, 0)
            port = router.bind_to_random_port("tcp://127.0.0.1")
            while True:
                yield f"127.0.0.1:{port}"
                while router.poll(20):
                    route, *_ = router.recv_multipart()
                    for frame in self._frames(self._to_decode, FROM_PREFILL):
                        router.send_multipart([route, frame])

    def _frames(self, target: Target, whole: list[object]) -> Iterator[bytes]:
        for _ in range(self._random.choice((1, 1, 1, 1, 2))):
            message = self._random.choice(whole)
            if self._random.random() < 0.2 and not isinstance(message, HandshakeReply):
                yield encode(message)
            else:
                yield target.make(self._random)


def harass(pair: Pair, hostile: Hostile, seconds: float, told: Told) -> None:
    """One turn after the other for that long; raises ``AssertionError`` when an engine does not work any more."""
    address, ends = pair.prefill.address, time.monotonic() + seconds
    liar = hostile.lie()
    generation = 0
    while time.monotonic() < ends:
        told.messages += hostile.speak(address, 20) + hostile.shout(address)
        told.connections += 2 + sum(hostile.break_off(address) for _ in range(3))
        generation += 1
        pair.clock.advance(1.0)
        false = OfferReference("prefill-1", "127.0.0.1", int(next(liar).rpartition(":")[2]), "request", generation, 10,
                               {"full": (5, 2, 7)})  # fmt: skip
        fetch = pair.decode.fetch(false, TARGET_BLOCKS)
        next(liar)
        serve(pair, f"request-{told.requests}", told)
        fetch.abort()
        try:
            fetch.result(PATIENCE)
        except KVWeaveError:
            continue
        raise AssertionError("a peer that lies delivered something")


def serve(pair: Pair, request_id: str, told: Told) -> None:
    """One request between the two engines, with the right bytes."""
    pair.decode.fetch(pair.offer(request_id), TARGET_BLOCKS).result(PATIENCE)
    if pair.wrong_bytes():
        raise AssertionError(f"{request_id}: {pair.wrong_bytes()} wrong bytes")
    told.requests += 1
