from __future__ import annotations

import pytest

pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError)
from kvweave.benchmarks.memory import CacheShape, consecutive
from kvweave.benchmarks.pair import Pair
from kvweave.benchmarks.source import Source
from kvweave.errors import TransportError

SHAPE = CacheShape(512, 4)


def test_both_readers_deliver_what_the_source_holds(source: Source) -> None:
    pair, table = Pair(source, SHAPE), consecutive(4)
    with pair.engine() as ours, pair.raw() as raw:
        for reader in (ours, raw):
            assert reader.read(table, table) > 0
            pair.require_delivered(table, table)
        assert ours.fetch(table, table).nbytes == SHAPE.request_bytes(4)


def test_wrong_bytes_are_no_measurement(source: Source) -> None:
    pair = Pair(source, SHAPE)
    with pytest.raises(TransportError, match=f"{2 * SHAPE.layers} pieces have wrong bytes"):
        pair.require_delivered([0, 1], [0, 1])
