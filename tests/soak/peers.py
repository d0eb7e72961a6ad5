"""Peers that come and go, over real sockets: what they leave behind, and who waits for whom.

``python -m tests.soak.peers --peers 1000`` prints memory and open files after each tenth, on both sides:

- decode engines (raw sockets that shake hands, half of them claim and vanish) at one prefill engine,
- prefill engines (each serves one request and ends) at one decode engine,

while one peer on each side never answers, and requests of a pair that stays go on.
"""

from __future__ import annotations

import argparse
import logging
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import zmq

import kvweave as kw
from kvweave.protocol.codec import encode
from kvweave.protocol.messages import Claim, EngineRole, HandshakeRequest
from kvweave.runtime import PrefillEngine
from tests.runtime.memory import EngineMemory
from tests.runtime.pair import PATIENCE, SOURCE_BLOCKS, TARGET_BLOCKS, Pair, joined, wait_until
from tests.soak.footprint import Footprint

MOST_GROWTH = 1.05
PARTS = 10


@contextmanager
def silent_address() -> Iterator[str]:
    """An address that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def visit(pair: Pair, context: zmq.Context[zmq.Socket[bytes]], number: int) -> None:
    """A decode engine comes, shakes hands, perhaps claims an offer, and is gone."""
    with context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(f"tcp://{pair.prefill.address}")
        dealer.send(encode(HandshakeRequest(1, f"visitor-{number}", EngineRole.DECODE, 2)))
        if not dealer.poll(int(1000 * PATIENCE)):
            raise AssertionError("the prefill engine does not answer")
        dealer.recv()
        if number % 2:
            offered = pair.offer(f"visit-{number}")
            dealer.send(encode(Claim(1, pair.prefill.engine_id, offered.offer)))
            dealer.poll(int(1000 * PATIENCE))
            pair.prefill.withdraw(offered)


def serve(pair: Pair, memory: EngineMemory, number: int) -> None:
    """A prefill engine comes, serves one request, and is gone."""
    with PrefillEngine(memory.layout, transport=pair.network.join, clock=pair.clock) as engine:
        offered = engine.offer(f"service-{number}", 40, SOURCE_BLOCKS)
        pair.decode.fetch(offered, TARGET_BLOCKS).result(PATIENCE)


def known_peers(pair: Pair) -> int:
    """How many prefill engines the decode engine has a record of."""
    return len(pair.decode._coordinator._side.peers)


def request(pair: Pair, number: int) -> None:
    """A request of the pair that stays."""
    pair.decode.fetch(pair.offer(f"own-{number}"), TARGET_BLOCKS).result(PATIENCE)
    if pair.wrong_bytes():
        raise AssertionError(f"request {number}: wrong bytes")


def run(pair: Pair, peers: int, parts: int = PARTS) -> Iterator[Footprint]:
    """All peers, half on either side; the footprint after each part."""
    context = zmq.Context()
    small = kw.CacheConfig(block_size=8, num_blocks=16)
    memory = EngineMemory(kw.EngineLayout.build(pair.model, kw.ParallelConfig(tp=1), small))
    memory.write(pair.whole, SOURCE_BLOCKS)
    for part in range(parts):
        for number in range(part * peers // parts, (part + 1) * peers // parts):
            (serve(pair, memory, number) if number % 2 else visit(pair, context, number // 2))
        request(pair, part)
        pair.clock.advance(2 * pair.lease_seconds)
        wait_until(lambda: known_peers(pair) <= 2)
        yield Footprint.now()
    context.destroy(linger=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=int, default=1000)
    given = parser.parse_args()
    logging.getLogger("kvweave").setLevel(logging.ERROR)
    began = time.monotonic()
    with silent_address() as silent, joined() as pair:
        host, _, port = silent.rpartition(":")
        unanswered = pair.decode.fetch(
            replace(pair.offer("silent"), engine_id="silent", host=host, port=int(port)), TARGET_BLOCKS
        )
        footprints = []
        for footprint in run(pair, given.peers):
            footprints.append(footprint)
            print(footprint, flush=True)
        print(f"the silent peer's request: {unanswered!r}")
    warm = footprints[len(footprints) // 3]
    growth = footprints[-1].resident_bytes / warm.resident_bytes
    files = footprints[-1].open_files - warm.open_files
    print(f"{given.peers} peers in {time.monotonic() - began:.0f} s: memory times {growth:.3f}, {files:+d} open files")
    sys.exit(0 if growth <= MOST_GROWTH and files <= 0 else 1)


if __name__ == "__main__":
    main()
