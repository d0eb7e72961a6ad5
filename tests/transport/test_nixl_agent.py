from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from kvweave.errors import TransportError, TransportErrorKind
from kvweave.testing.transport_contract import fresh_name
from kvweave.transport.rows import ReadRows, single

nixl_agent = pytest.importorskip("kvweave.transport.nixl_agent", exc_type=ImportError)

MEMORY_BYTES = 1 << 20


@pytest.fixture
def agents() -> Iterator[tuple[object, object, str]]:
    """A source and a target that knows it, by its name."""
    name = fresh_name("source")
    source, target = nixl_agent.NixlAgent(name), nixl_agent.NixlAgent(fresh_name("target"))
    yield source, target, name
    target.close()
    source.close()


def test_a_message_arrives_with_the_name_of_its_sender(agents: tuple[object, object, str]) -> None:
    source, target, name = agents
    target.add(name, source.describe())
    target.notify(name, b"x" * 100_000)
    found: dict[str, list[bytes]] = {}
    while not found:
        target.progress()
        found = source.progress()
    assert [messages for _, messages in found.items()] == [[b"x" * 100_000]]


def test_a_piece_may_be_started_again(agents: tuple[object, object, str]) -> None:
    source, target, name = agents
    memory, landing = np.zeros(MEMORY_BYTES, np.uint8), np.zeros(MEMORY_BYTES, np.uint8)
    source.register_own(memory)
    target.register_own(landing)
    target.add(name, source.describe())
    piece = target.prepare(name, ReadRows(*(single(at.ctypes.data) for at in (memory, landing)), single(64)))
    for value in (1, 2, 3):
        memory[:] = value
        target.start(piece)
        while not target.is_over(piece):
            source.progress()
        assert (landing[:64] == value).all() and not landing[64:].any()
    target.release(piece)


def test_nobody_is_told_by_an_error_of_ours(agents: tuple[object, object, str]) -> None:
    with pytest.raises(TransportError) as caught:
        agents[1].notify("nobody", b"hello")
    assert caught.value.kind is TransportErrorKind.PEER_LOST
