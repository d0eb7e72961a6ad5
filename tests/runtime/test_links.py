"""Workers behind links: the engines of ``pair.py`` with every rank's worker in a service of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import kvweave as kw
from kvweave.core.layout import EngineLayout
from kvweave.errors import LocalProtocolError, TransportError
from kvweave.runtime import DecodeEngine, PrefillEngine
from kvweave.runtime.links import RankLink
from kvweave.runtime.local_channel import Endpoint
from kvweave.runtime.rank_service import RankService
from kvweave.transport.memory import MemoryNetwork
from tests.runtime.memory import ATTENTION, EngineMemory, contents
from tests.runtime.pair import PATIENCE, SOURCE_BLOCKS, TARGET_BLOCKS, wait_until


class LinkedPair:
    """A prefill engine of tp 4 in blocks of 8 and a decode engine of tp 2 in blocks of 12, coordinators apart."""

    def __init__(self, stack: ExitStack) -> None:
        self.network = MemoryNetwork()
        self.source = EngineMemory(self._layout(4, 8))
        self.target = EngineMemory(self._layout(2, 12))
        self.whole = contents(ATTENTION, 1)
        self.source.write(self.whole, SOURCE_BLOCKS)
        self.prefill_services = self._services(self.source, "prefill", stack)
        self.decode_services = self._services(self.target, "decode", stack)
        self.prefill = PrefillEngine(self.source.layout, workers=links(self.prefill_services, "prefill"))
        stack.callback(self.prefill.close)
        reading = links(self.decode_services, "decode")
        for rank, link in enumerate(reading):
            link.adopt(rank, self.target.layout)
        self.decode = DecodeEngine(self.target.layout, workers=reading)
        stack.callback(self.decode.close)

    def _layout(self, tp: int, block_size: int) -> EngineLayout:
        cache = kw.CacheConfig(block_size=block_size, num_blocks=16)
        return kw.EngineLayout.build(ATTENTION, kw.ParallelConfig(tp=tp), cache)

    def _services(self, memory: EngineMemory, role: str, stack: ExitStack) -> list[RankService]:
        services = []
        for number, rank in enumerate(memory.layout.ranks):
            name = f"{role} {number}"
            services.append(RankService(name, rank, self.network.join(name), [role]))
            stack.callback(services[-1].close)
        return services


def links(services: list[RankService], role: str) -> list[RankLink]:
    return [RankLink(service.endpoints[role], service.agent_data) for service in services]


@pytest.fixture
def pair() -> Iterator[LinkedPair]:
    with ExitStack() as stack:
        yield LinkedPair(stack)


def test_delivers_the_right_bytes_through_links(pair: LinkedPair) -> None:
    released: list[object] = []
    reference = pair.prefill.offer("request", 40, SOURCE_BLOCKS, released.append)
    delivered = pair.decode.fetch(reference, TARGET_BLOCKS).result(PATIENCE)
    assert delivered.nbytes > 0
    assert pair.target.wrong_bytes(pair.whole, TARGET_BLOCKS) == 0
    wait_until(lambda: len(released) == 1)


def test_a_lost_source_fails_the_fetch_and_frees_its_target(pair: LinkedPair) -> None:
    reference = pair.prefill.offer("request", 40, SOURCE_BLOCKS)
    pair.decode.connect(reference.address).result(PATIENCE)
    for service in pair.prefill_services:
        service.close()
    fetch = pair.decode.fetch(reference, TARGET_BLOCKS)
    with pytest.raises(TransportError):
        fetch.result(PATIENCE)
    assert fetch.wait_reusable(PATIENCE)


def test_a_mismatch_found_by_a_worker_names_its_reasons(pair: LinkedPair) -> None:
    other = kw.EngineLayout.build(ATTENTION, kw.ParallelConfig(tp=2), kw.CacheConfig(num_blocks=4, dtype="float16"))
    with PrefillEngine(EngineMemory(other).layout, transport=pair.network.join) as foreign:
        connected = pair.decode.connect(foreign.address)
        with pytest.raises(kw.errors.IncompatiblePeer, match="dtype"):
            connected.result(PATIENCE)


def test_an_engine_whose_worker_ends_fails_what_waits_for_it(pair: LinkedPair) -> None:
    for service in pair.decode_services:
        service.close()
    wait_until(lambda: not pair.decode._thread.alive)
    with pytest.raises(LocalProtocolError, match=r"ended|closed"):
        pair.decode.fetch(pair.prefill.offer("request", 40, SOURCE_BLOCKS), TARGET_BLOCKS)


def test_closing_waits_until_the_workers_have_ended(pair: LinkedPair) -> None:
    pair.decode.close()
    pair.prefill.close()
    for service in (*pair.decode_services, *pair.prefill_services):
        with pytest.raises(LocalProtocolError):
            service._thread._pollable._transport.agent_data()


def test_an_endpoint_where_nobody_listens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TransportError, match="no worker answers"):
        RankLink(Endpoint(f"{tmp_path}/nobody", b"token"), b"")


@pytest.mark.parametrize("engine", [PrefillEngine, DecodeEngine])
def test_an_engine_needs_a_worker_for_every_rank(engine: type, pair: LinkedPair) -> None:
    with pytest.raises(LocalProtocolError, match="0 workers for 4 ranks"):
        engine(pair.source.layout)
