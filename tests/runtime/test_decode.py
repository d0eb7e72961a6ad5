"""Both engines in one process: offers are fetched with the right bytes, and every failure is one of our errors."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace

import pytest

import kvweave as kw
from kvweave.core.model import ModelCache
from kvweave.errors import (
    BlockTableError,
    ConfigurationError,
    IncompatiblePeer,
    KVWeaveError,
    LocalProtocolError,
    RemoteProtocolError,
    TransferRefused,
    TransportError,
    TransportErrorKind,
)
from kvweave.protocol.effects import FailureReason, ReleaseReason
from kvweave.protocol.messages import RefusalReason
from kvweave.protocol.timing import Timing
from kvweave.runtime import DecodeEngine
from kvweave.transport.faults import Fault, scripted_faults
from kvweave.transport.memory import MemoryNetwork
from tests.runtime.memory import ATTENTION, LATENT
from tests.runtime.pair import PATIENCE, SOURCE_BLOCKS, TARGET_BLOCKS, Pair, joined, wait_until

SIZES = {
    "tp 4 to 2": (ATTENTION, kw.ParallelConfig(tp=4), kw.ParallelConfig(tp=2)),
    "tp 2 to 4": (ATTENTION, kw.ParallelConfig(tp=2), kw.ParallelConfig(tp=4)),
    "tp 8 to 1, replicated heads": (ATTENTION, kw.ParallelConfig(tp=8), kw.ParallelConfig(tp=1)),
    "pp 2 to 1": (ATTENTION, kw.ParallelConfig(tp=2, pp=2), kw.ParallelConfig(tp=1)),
    "pp 1 to 2": (ATTENTION, kw.ParallelConfig(tp=1), kw.ParallelConfig(tp=2, pp=2)),
    "latent, tp 4 to 2": (LATENT, kw.ParallelConfig(tp=4), kw.ParallelConfig(tp=2)),
    "latent, dcp 4 to tp 1": (LATENT, kw.ParallelConfig(tp=4, dcp=4, interleave=8), kw.ParallelConfig(tp=1)),
}


@pytest.mark.parametrize("sizes", SIZES)
def test_engines_of_unequal_shape_move_the_right_bytes(sizes: str) -> None:
    model, prefill, decode = SIZES[sizes]
    with joined(model=model, prefill_sizes=prefill, decode_sizes=decode) as pair:
        reference = pair.offer()
        delivered = pair.decode.fetch(reference, TARGET_BLOCKS).result(PATIENCE)
        assert pair.wrong_bytes() == 0
        assert delivered.nbytes == sum(region for read in delivered.sources.values() for region in read.values())
        released = pair.released.get(timeout=PATIENCE)
        assert (released.request_id, released.generation) == ("request", reference.generation)
        assert released.reason is ReleaseReason.ACKNOWLEDGED


@pytest.fixture
def pair() -> Pair:
    with joined() as made:
        yield made


def failure(fetch: object) -> object:
    fetch.error()
    with pytest.raises(KVWeaveError) as caught:
        fetch.result(PATIENCE)
    assert fetch.error() is caught.value
    return fetch.failed.reason


def test_reference_works_as_kv_transfer_params(pair: Pair) -> None:
    pair.decode.fetch(pair.offer().params(), TARGET_BLOCKS).result(PATIENCE)
    assert pair.wrong_bytes() == 0


def test_report_says_what_was_read_from_whom_and_how_long_it_took(pair: Pair) -> None:
    delivered = pair.decode.fetch(pair.offer(), TARGET_BLOCKS).result(PATIENCE)
    assert {str(rank): sorted(map(str, read)) for rank, read in delivered.sources.items()} == {
        "tp0": ["tp0", "tp1"],
        "tp1": ["tp2", "tp3"],
    }
    assert delivered.nbytes == 40 * 4 * 8 * 2 * 2 * 2
    assert set(delivered.seconds) == {"queued", "peer", "claim", "post", "read", "grant"}
    metrics = pair.decode.metrics()
    assert (metrics.total("delivered"), metrics.total("bytes")) == (1, delivered.nbytes)


def test_prefix_that_is_there_already_is_not_read(pair: Pair) -> None:
    delivered = pair.decode.fetch(pair.offer(), TARGET_BLOCKS, start_token=24).result(PATIENCE)
    assert delivered.nbytes == 16 * 4 * 8 * 2 * 2 * 2


def test_whole_prompt_that_is_there_already_reads_nothing_and_releases(pair: Pair) -> None:
    delivered = pair.decode.fetch(pair.offer(), TARGET_BLOCKS, start_token=40).result(PATIENCE)
    assert (delivered.nbytes, delivered.num_rows) == (0, 0)
    assert pair.released.get(timeout=PATIENCE).reason is ReleaseReason.ACKNOWLEDGED


def test_many_fetches_at_once_share_one_handshake(pair: Pair) -> None:
    fetches = [pair.decode.fetch(pair.offer(f"request {n}"), TARGET_BLOCKS) for n in range(30)]
    for fetch in fetches:
        fetch.result(PATIENCE)
    assert pair.prefill.metrics().total("handshakes") == 1
    wait_until(lambda: pair.prefill.metrics().total("released", "acknowledged") == 30)


def test_connecting_ahead_tells_who_the_peer_is(pair: Pair) -> None:
    peer = pair.decode.connect(pair.prefill.address).result(PATIENCE)
    assert (peer.engine_id, peer.layout.ranks) == (pair.prefill.engine_id, pair.source.layout.ranks)
    assert pair.decode.connect(pair.prefill.address).result(PATIENCE) == peer


def test_second_fetch_of_an_offer_is_refused(pair: Pair) -> None:
    reference = pair.offer()
    pair.decode.fetch(reference, TARGET_BLOCKS).result(PATIENCE)
    with pytest.raises(TransferRefused, match="released"):
        pair.decode.fetch(reference, TARGET_BLOCKS).result(PATIENCE)


def test_second_engine_that_claims_is_refused(pair: Pair) -> None:
    reference = pair.offer()
    hold = scripted_faults([Fault(dropped=True)] * 10)
    slow = DecodeEngine(pair.target.layout, transport=lambda name: pair.network.join(name, hold), clock=pair.clock)
    first = slow.fetch(reference, TARGET_BLOCKS)
    wait_until(lambda: pair.prefill._coordinator._side.offers.attended == 1)
    with pytest.raises(TransferRefused, match="already_claimed"):
        pair.decode.fetch(reference, TARGET_BLOCKS).result(PATIENCE)
    slow.close()
    assert failure(first) is FailureReason.CLOSED


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"request_id": "unknown"}, RefusalReason.UNKNOWN_REQUEST),
        ({"generation": 1}, RefusalReason.WRONG_GENERATION),
        ({"engine_id": "somebody"}, RefusalReason.WRONG_ENGINE),
        ({"tables": {"full": (9, 3, 12, 0, 8)}}, FailureReason.WRONG_REFERENCE),
        ({"tables": {"full": (9, 3, 12, 0, 10_000)}}, FailureReason.WRONG_REFERENCE),
        ({"num_tokens": 39}, FailureReason.WRONG_REFERENCE),
    ],
    ids=["unknown request", "wrong generation", "wrong engine", "other blocks", "blocks out of range", "other tokens"],
)
def test_wrong_reference_is_never_an_answer_and_is_counted(
    pair: Pair, change: dict[str, object], reason: object
) -> None:
    fetch = pair.decode.fetch(replace(pair.offer(), **change), TARGET_BLOCKS)
    assert failure(fetch) is reason
    assert fetch.wait_reusable(PATIENCE)
    assert pair.decode.metrics().total("failed", reason.value) == 1


def test_target_blocks_that_are_too_few_fail_with_the_tables_error(pair: Pair) -> None:
    fetch = pair.decode.fetch(pair.offer(), {"full": [1, 5]})
    with pytest.raises(BlockTableError, match="the tokens need 4"):
        fetch.result(PATIENCE)
    assert pair.released.get(timeout=PATIENCE).reason is ReleaseReason.ACKNOWLEDGED


@pytest.mark.parametrize("blocks", [{"full": [1, 5, 0, 16]}, {"other": [1]}, [[1], [2]]], ids=str)
def test_blocks_that_this_engine_has_not_are_refused_at_once(pair: Pair, blocks: object) -> None:
    with pytest.raises(BlockTableError):
        pair.decode.fetch(pair.offer(), blocks)


@pytest.mark.parametrize("host", ["10.1.2.3", "example.org"])
def test_host_from_a_client_that_is_not_a_peer_is_refused_before_anything_is_sent(pair: Pair, host: str) -> None:
    with pytest.raises(RemoteProtocolError, match=host):
        pair.decode.fetch(replace(pair.offer(), host=host), TARGET_BLOCKS)


def test_start_beyond_the_offer_is_refused_at_once(pair: Pair) -> None:
    with pytest.raises(BlockTableError, match="start_token 41 of 40"):
        pair.decode.fetch(pair.offer(), TARGET_BLOCKS, start_token=41)


def test_failed_source_fails_the_fetch_once_and_frees_the_blocks_of_both_sides() -> None:
    with joined(faults=scripted_faults([Fault(copied=0.5, error=TransportErrorKind.UNAVAILABLE)])) as pair:
        fetch = pair.decode.fetch(pair.offer(), TARGET_BLOCKS)
        with pytest.raises(TransportError) as caught:
            fetch.result(PATIENCE)
        assert caught.value.kind is TransportErrorKind.UNAVAILABLE
        assert fetch.wait_reusable(PATIENCE)
        assert pair.released.get(timeout=PATIENCE).reason is ReleaseReason.ACKNOWLEDGED


def test_abort_while_reading_ends_the_reads_and_frees_both_sides() -> None:
    with joined(faults=scripted_faults([Fault(dropped=True)] * 10)) as pair:
        fetch = pair.decode.fetch(pair.offer(), TARGET_BLOCKS)
        wait_until(lambda: pair.prefill._coordinator._side.offers.attended == 1)
        fetch.abort()
        assert failure(fetch) is FailureReason.ABORTED
        assert fetch.wait_reusable(PATIENCE)
        assert pair.released.get(timeout=PATIENCE).reason is ReleaseReason.ACKNOWLEDGED


def test_abort_of_a_finished_fetch_is_ignored(pair: Pair) -> None:
    fetch = pair.decode.fetch(pair.offer(), TARGET_BLOCKS)
    delivered = fetch.result(PATIENCE)
    fetch.abort()
    assert fetch.result(PATIENCE) is delivered


def test_lease_that_ends_while_reading_fails_the_fetch_and_releases_the_blocks() -> None:
    with joined(faults=scripted_faults([Fault(dropped=True)] * 10), lease_seconds=10) as pair:
        fetch = pair.decode.fetch(pair.offer(), TARGET_BLOCKS)
        wait_until(lambda: pair.prefill._coordinator._side.offers.attended == 1)
        pair.clock.advance(11)
        over = (RefusalReason.LEASE_ENDED, FailureReason.REVOKED, FailureReason.LATE, FailureReason.UNANSWERED)
        assert failure(fetch) in over
        assert pair.released.get(timeout=PATIENCE).reason is ReleaseReason.LEASE_ENDED


def test_offer_that_nobody_fetches_is_released_with_its_lease(pair: Pair) -> None:
    pair.offer()
    wait_until(lambda: pair.prefill.metrics().total("offers") == 1)
    pair.clock.advance(29.9)
    assert pair.released.empty()
    pair.clock.advance(0.2)
    assert pair.released.get(timeout=PATIENCE).reason is ReleaseReason.LEASE_ENDED


def test_held_offer_lives_by_heartbeats_and_is_fetched_minutes_later(pair: Pair) -> None:
    reference = pair.offer()
    held = pair.decode.hold(reference)
    wait_until(lambda: pair.decode._coordinator._side.peers.state(pair.prefill.address) == "ready")
    for _ in range(30):
        book = pair.prefill._coordinator._side.offers._offers[reference.offer]
        before = book.lease_end
        pair.clock.advance(11)
        wait_until(lambda book=book, before=before: book.lease_end > before)
    pair.decode.begin(held, reference, TARGET_BLOCKS)
    held.result(PATIENCE)
    assert pair.wrong_bytes() == 0


def test_held_offer_is_dropped_by_abort_and_free_at_once(pair: Pair) -> None:
    held = pair.decode.hold(pair.offer())
    wait_until(lambda: pair.decode._coordinator._side.peers.state(pair.prefill.address) == "ready")
    held.abort()
    assert failure(held) is FailureReason.ABORTED
    assert pair.released.get(timeout=PATIENCE).reason is ReleaseReason.ACKNOWLEDGED


def test_fetch_is_begun_once(pair: Pair) -> None:
    reference = pair.offer()
    fetch = pair.decode.fetch(reference, TARGET_BLOCKS)
    with pytest.raises(LocalProtocolError, match="begun before"):
        pair.decode.begin(fetch, reference, TARGET_BLOCKS)


def test_prefill_engine_that_is_gone_fails_its_requests_in_bounded_time() -> None:
    with joined(timing=Timing(answer_seconds=5)) as pair:
        reference = pair.offer()
        pair.decode.connect(pair.prefill.address).result(PATIENCE)
        pair.kill_prefill()
        fetch = pair.decode.fetch(reference, TARGET_BLOCKS)
        wait_until(lambda: pair.decode._coordinator._side.fetches.begun == 1)
        pair.clock.advance(6)
        assert failure(fetch) in (FailureReason.UNANSWERED, FailureReason.PEER_LOST)


def test_source_that_dies_while_it_is_read_is_a_lost_peer() -> None:
    with joined(faults=scripted_faults([Fault(dropped=True)] * 10)) as pair:
        fetch = pair.decode.fetch(pair.offer(), TARGET_BLOCKS)
        wait_until(lambda: pair.prefill._coordinator._side.offers.attended == 1)
        for transport in pair.transports:
            pair.network.kill(transport)
        with pytest.raises(TransportError) as caught:
            fetch.result(PATIENCE)
        assert caught.value.kind is TransportErrorKind.PEER_LOST
        wait_until(lambda: pair.decode.metrics().total("peers_lost") == 1)


def test_peer_that_never_answers_does_not_delay_another(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        silent = pair.decode.connect(f"127.0.0.1:{mute.getsockname()[1]}")
        pair.decode.fetch(pair.offer(), TARGET_BLOCKS).result(PATIENCE)
        assert not silent.done()
        pair.clock.advance(30)
        with pytest.raises(TransportError):
            silent.result(PATIENCE)


def test_first_fetch_from_an_engine_that_is_gone_fails_without_any_timer() -> None:
    with joined() as pair:
        reference = pair.offer()
        pair.kill_prefill()
        fetch = pair.decode.fetch(reference, TARGET_BLOCKS)
        with pytest.raises(TransportError, match="nobody listens there") as caught:
            fetch.result(PATIENCE)
        assert caught.value.kind is TransportErrorKind.PEER_LOST
        assert fetch.wait_reusable(PATIENCE)


def test_incompatible_peer_is_refused_with_every_reason_on_both_sides(caplog: pytest.LogCaptureFixture) -> None:
    other = ModelCache("other", ATTENTION.num_layers, ATTENTION.groups, "weights b")
    with joined(model=replace(ATTENTION, fingerprint="weights a"), decode_model=other) as pair:
        fetch = pair.decode.fetch(pair.offer(), TARGET_BLOCKS)
        with pytest.raises(IncompatiblePeer, match="weights a") as caught:
            fetch.result(PATIENCE)
        assert [problem.field for problem in caught.value.problems] == ["model"]
        wait_until(lambda: "finds us incompatible" in caplog.text)


@pytest.mark.parametrize("times", [1, 2])
def test_closing_fails_what_is_open_and_may_be_repeated(times: int) -> None:
    with joined(faults=scripted_faults([Fault(dropped=True)] * 10)) as pair:
        fetch = pair.decode.fetch(pair.offer(), TARGET_BLOCKS)
        wait_until(lambda: pair.decode._coordinator._side.fetches.reading == 1)
        for _ in range(times):
            pair.decode.close()
        assert failure(fetch) is FailureReason.CLOSED
        assert fetch.wait_reusable(PATIENCE)
        assert pair.released.get(timeout=PATIENCE).reason is ReleaseReason.ACKNOWLEDGED
        with pytest.raises(LocalProtocolError, match="closed"):
            pair.decode.fetch(pair.offer(), TARGET_BLOCKS)


def test_callbacks_that_raise_do_not_harm_the_engine(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: object) -> None:
        raise ValueError("of the caller's own")

    first = pair.decode.fetch(pair.offer(), TARGET_BLOCKS)
    first.add_done_callback(broken)
    first.result(PATIENCE)
    pair.prefill.offer("request", 0, SOURCE_BLOCKS, on_release=broken)
    pair.decode.fetch(pair.offer(), TARGET_BLOCKS).result(PATIENCE)
    wait_until(lambda: caplog.text.count("exception calling callback") == 2)


def test_done_callback_comes_once_with_the_fetch(pair: Pair) -> None:
    called = threading.Event()
    fetch = pair.decode.fetch(pair.offer(), TARGET_BLOCKS)
    seen: list[object] = []
    fetch.add_done_callback(lambda done: (seen.append(done), called.set()))
    assert called.wait(PATIENCE)
    assert seen == [fetch]


def test_configuration_that_cannot_be_read_leaves_nothing_behind(pair: Pair) -> None:
    network = MemoryNetwork()
    with pytest.raises(ConfigurationError, match="/99"):
        DecodeEngine(pair.target.layout, transport=network.join, peers=["10.0.0.0/99"])
    assert network._transports == {}


BROKEN = Fault(copied=0.5, error=TransportErrorKind.UNAVAILABLE)


def test_piece_that_one_source_fails_to_give_is_read_from_another_replica() -> None:
    with joined(model=LATENT, faults=scripted_faults([BROKEN])) as pair:
        delivered = pair.decode.fetch(pair.offer(), TARGET_BLOCKS).result(PATIENCE)
        assert pair.wrong_bytes() == 0
        assert delivered.nbytes == 40 * 24 * 2 * 2 * 2
        assert pair.decode.metrics().total("retried_reads") == 1
        assert 0 <= delivered.seconds["retry"] <= delivered.seconds["read"]
        assert pair.released.get(timeout=PATIENCE).reason is ReleaseReason.ACKNOWLEDGED


def test_piece_that_every_replica_fails_to_give_fails_the_fetch_once() -> None:
    with joined(model=LATENT, faults=scripted_faults([BROKEN] * 8)) as pair:
        fetch = pair.decode.fetch(pair.offer(), TARGET_BLOCKS)
        assert failure(fetch) is FailureReason.READ_FAILED
        assert fetch.wait_reusable(PATIENCE)
        assert pair.released.get(timeout=PATIENCE).reason is ReleaseReason.ACKNOWLEDGED
        assert pair.decode.metrics().total("failed") == 1


def test_drained_engine_takes_nothing_new_and_ends_what_it_has(pair: Pair) -> None:
    held = pair.decode.hold(pair.offer())
    drained = pair.decode.drain()
    with pytest.raises(LocalProtocolError, match="drained"):
        pair.decode.fetch(pair.offer("new"), TARGET_BLOCKS)
    assert not drained.done()
    held.abort()
    assert drained.result(PATIENCE) is None


def test_closing_ends_the_wait_for_a_drain(pair: Pair) -> None:
    pair.decode.hold(pair.offer())
    drained = pair.decode.drain()
    pair.decode.close()
    assert drained.result(PATIENCE) is None
