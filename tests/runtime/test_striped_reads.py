"""A decode worker before several replicas: large requests in stripes, small ones by load, failures read elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

import kvweave as kw
from kvweave.core.spec import MLAAttentionSpec
from kvweave.core.spread import STRIPE_BYTES
from kvweave.errors import TransportErrorKind
from kvweave.protocol.effects import ConnectPeer, PostReads, RetryReads
from kvweave.runtime.events import Connected, ReadFailed, ReadsEnded
from kvweave.runtime.workers import DecodeWorker, PrefillWorker
from kvweave.transport.faults import Fault, scripted_faults
from kvweave.transport.memory import MemoryNetwork
from tests.runtime.memory import EngineMemory, contents, two_layers

LATENT = two_layers("latent", MLAAttentionSpec(2048))
TOKEN_BYTES = 2 * 2048 * 2
BLOCK = 64
BROKEN = Fault(copied=0.5, error=TransportErrorKind.UNAVAILABLE)
STUCK = Fault(dropped=True)
SMALL = {"source_tables": {"full": (17,)}, "target_tables": {"full": (9,)}, "num_tokens": 20}


class Joined:
    """Four prefill workers that hold the same latents, and one decode worker, driven by hand."""

    tokens = 4 * STRIPE_BYTES // TOKEN_BYTES + 7

    def __init__(self, *faults: Fault) -> None:
        network = MemoryNetwork()
        blocks = -(-self.tokens // BLOCK)
        self.source_table, self.target_table = (np.random.default_rng(n).permutation(blocks) for n in (1, 2))
        cache = kw.CacheConfig(block_size=BLOCK, num_blocks=blocks + 1)
        self.source = source = EngineMemory(kw.EngineLayout.build(LATENT, kw.ParallelConfig(tp=4), cache))
        self.target = EngineMemory(kw.EngineLayout.build(LATENT, kw.ParallelConfig(), cache))
        self.whole = contents(LATENT, 1, self.tokens)
        source.write(self.whole, {"full": self.source_table})
        ranks = [(rank, network.join(str(rank.coordinates))) for rank in source.layout.ranks]
        self.prefill = [PrefillWorker(rank, transport) for rank, transport in ranks]
        self.decode = DecodeWorker(
            0, self.target.layout, network.join("decode", scripted_faults(faults)), lambda: 100.0
        )
        self.decode.submit(ConnectPeer("prefill", 1, source.layout, tuple(one.agent_data for one in self.prefill)))
        assert self.rounds() == [Connected("prefill", 1, 0)]

    def post(self, fetch: int, salt: int, **changes: object) -> None:
        fields = {
            "source_tables": {"full": tuple(self.source_table)}, "target_tables": {"full": tuple(self.target_table)},
            "start_token": 0, "num_tokens": self.tokens,
        } | changes  # fmt: skip
        self.decode.submit(PostReads(fetch=fetch, address="prefill", salt=salt, **fields))

    def rounds(self, count: int = 4) -> list[object]:
        events: list[object] = []
        for _ in range(count):
            for worker in self.prefill:
                worker.poll()
            events += self.decode.poll()
        return events

    def wrong_bytes(self) -> int:
        return self.target.wrong_bytes(self.whole, {"full": self.target_table})


def bytes_from(ended: object) -> dict[int, int]:
    assert isinstance(ended, ReadsEnded)
    return {source.tp: nbytes for source, nbytes in ended.statistics.bytes_from.items()}


@pytest.mark.parametrize("salt", [0, 3])
def test_a_large_request_is_read_from_all_replicas_equally(salt: int) -> None:
    joined = Joined()
    joined.post(1, salt)
    found = bytes_from(joined.rounds()[0])
    assert joined.wrong_bytes() == 0
    assert sum(found.values()) == joined.tokens * TOKEN_BYTES and len(found) == 4
    assert max(found.values()) - min(found.values()) <= BLOCK * TOKEN_BYTES


def test_small_requests_go_to_the_least_loaded_replica() -> None:
    """Requests that never end stay in flight; the fourth, of the same salt as the first, finds one source free."""
    joined = Joined(STUCK, STUCK, STUCK)
    for fetch, salt in enumerate((1, 1, 0)):
        joined.post(fetch, salt, **SMALL)
    joined.rounds()
    joined.post(4, 1, **SMALL)
    (ended,) = joined.rounds()
    assert bytes_from(ended) == {3: 20 * TOKEN_BYTES}


def test_replicas_without_load_take_turns() -> None:
    joined, found = Joined(), []
    for fetch in range(5):
        joined.post(fetch, salt=fetch, **SMALL)
        found += list(bytes_from(joined.rounds()[0]))
    assert found == [0, 1, 2, 3, 0]


@pytest.mark.parametrize(
    ("faults", "lost"),
    [((BROKEN,), {2}), ((Fault(), BROKEN, Fault(delay=2)), {3}), ((Fault(delay=1), BROKEN, BROKEN), {3, 0})],
    ids=["the first stripe", "the second one", "two of them"],
)
def test_failed_stripes_are_read_again_from_other_replicas(faults: tuple[Fault, ...], lost: set[int]) -> None:
    joined = Joined(*faults)
    joined.post(1, salt=2)
    failed, *_, first = joined.rounds()
    assert isinstance(failed, ReadFailed) and failed.elsewhere
    assert len(bytes_from(first)) == 4 and joined.wrong_bytes() > 0
    joined.decode.submit(RetryReads(1, 0))
    (ended,) = joined.rounds()
    assert joined.wrong_bytes() == 0
    assert sum(bytes_from(ended).values()) == joined.tokens * TOKEN_BYTES
    assert set(bytes_from(ended)) == {0, 1, 2, 3} - lost


def test_what_fails_once_more_is_read_from_those_that_are_left() -> None:
    joined = Joined(BROKEN, Fault(), Fault(), Fault(), BROKEN)
    joined.post(1, salt=0)
    for _ in range(2):
        assert [type(event) for event in joined.rounds()] == [ReadFailed, ReadsEnded]
        joined.decode.submit(RetryReads(1, 0))
    (ended,) = joined.rounds()
    assert joined.wrong_bytes() == 0
    assert set(bytes_from(ended)) == {2, 3} and sum(bytes_from(ended).values()) == joined.tokens * TOKEN_BYTES


def test_what_every_replica_fails_to_give_has_no_other_source() -> None:
    joined = Joined(*[BROKEN] * 4)
    joined.post(1, salt=0)
    failed, _ = joined.rounds()
    assert isinstance(failed, ReadFailed) and not failed.elsewhere
