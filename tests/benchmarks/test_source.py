from __future__ import annotations

import pytest

pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError)
from kvweave.benchmarks.memory import CacheShape
from kvweave.benchmarks.source import Source, SourceProcessError
from kvweave.benchmarks.ways import Way


def test_an_offer_names_its_engine(source: Source) -> None:
    source.allocate(CacheShape(512, 4))
    address = source.open_engine(Way.AUTO)
    params = source.offer(address, "request", [1, 3])
    assert params["do_remote_prefill"] is True and str(params["remote_port"]) == address.rpartition(":")[2]


def test_a_question_that_cannot_be_answered_says_why(source: Source) -> None:
    source.allocate(CacheShape(512, 4))
    address = source.open_engine(Way.AUTO)
    with pytest.raises(SourceProcessError, match="block 9"):
        source.offer(address, "request", [9])


def test_a_process_that_has_ended_is_named() -> None:
    ended = Source()
    ended.close()
    with pytest.raises(SourceProcessError, match="it has ended, asked to open_engine"):
        ended.open_engine(Way.AUTO)


def test_engines_need_memory() -> None:
    with Source() as empty, pytest.raises(SourceProcessError, match="no memory was allocated"):
        empty.open_engine(Way.AUTO)
