"""Prompts that are offered while they are prefilled, over the memory transport."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvweave.errors import KVWeaveError, LocalProtocolError, TransferRefused, TransportError
from kvweave.protocol.effects import FailureReason, ReleaseReason
from kvweave.runtime import Fetch, ProgressiveTransfer, new_transfer_id
from kvweave.runtime.transfer import checked_transfer_id, kept_groups
from tests.core.engines import engine, heads_of, mamba2_of, model_of_groups
from tests.runtime.memory import contents
from tests.runtime.pair import PATIENCE, SOURCE_BLOCKS, TARGET_BLOCKS, Pair, joined, wait_until


@pytest.fixture
def pair() -> Iterator[Pair]:
    with joined() as made:
        yield made


class Progress:
    """One transfer and who follows it."""

    def __init__(self, pair: Pair, start_token: int = 0) -> None:
        self.pair = pair
        transfer_id = new_transfer_id()
        self.transfer: ProgressiveTransfer = pair.prefill.begin_transfer(transfer_id, "request")
        self.fetch: Fetch = pair.decode.follow(transfer_id, pair.prefill.address, TARGET_BLOCKS, start_token)

    def offer(self, num_tokens: int) -> None:
        self.transfer.offer_chunk(num_tokens, SOURCE_BLOCKS, self.pair.released.put)

    def finish(self, num_tokens: int = 40) -> None:
        self.transfer.finish(num_tokens, SOURCE_BLOCKS, self.pair.released.put)

    def wait_read(self) -> None:
        """Until one more part was read and its blocks were released."""
        assert self.pair.released.get(timeout=PATIENCE).reason is ReleaseReason.ACKNOWLEDGED


@pytest.fixture
def progress(pair: Pair) -> Progress:
    return Progress(pair)


def test_parts_are_read_while_the_prompt_is_prefilled(progress: Progress) -> None:
    for num_tokens in (8, 16, 30):
        progress.offer(num_tokens)
        progress.wait_read()
    assert not progress.fetch.done()
    progress.finish()
    delivered = progress.fetch.result(PATIENCE)
    assert progress.pair.wrong_bytes() == 0
    assert delivered.early_bytes == delivered.nbytes * 30 // 40
    progress.wait_read()


def test_a_drained_decode_engine_reads_what_it_follows_to_the_end(progress: Progress) -> None:
    progress.offer(16)
    progress.wait_read()
    drained = progress.pair.decode.drain()
    progress.offer(30)
    progress.wait_read()
    assert not drained.done()
    progress.finish()
    progress.fetch.result(PATIENCE)
    assert progress.pair.wrong_bytes() == 0
    assert drained.result(PATIENCE) is None


def test_a_fetch_behind_a_prefix_reads_the_rest(pair: Pair) -> None:
    progress = Progress(pair, start_token=12)
    progress.offer(8)
    progress.offer(24)
    progress.wait_read()
    progress.finish()
    assert progress.fetch.result(PATIENCE).early_bytes == progress.fetch.result(0).nbytes * 12 // 28


def test_a_transfer_that_began_before_anybody_follows_it_is_read_all_the_same(pair: Pair) -> None:
    transfer_id = new_transfer_id()
    transfer = pair.prefill.begin_transfer(transfer_id, "request")
    transfer.offer_chunk(16, SOURCE_BLOCKS)
    fetch = pair.decode.follow(transfer_id, pair.prefill.address, TARGET_BLOCKS)
    transfer.finish(40, SOURCE_BLOCKS)
    fetch.result(PATIENCE)
    assert pair.wrong_bytes() == 0


def test_what_a_preempted_request_had_offered_is_read_again_from_its_new_blocks(progress: Progress) -> None:
    """Its old blocks are another's at once; what was read of them must not be in the answer."""
    pair, other = progress.pair, {"full": [1, 2, 4, 5, 6]}
    pair.source.write(contents(pair.model, 2), SOURCE_BLOCKS)
    progress.offer(16)
    progress.wait_read()
    progress.transfer.give_up_blocks()
    pair.source.write(pair.whole, other)
    progress.transfer.offer_chunk(8, other, pair.released.put)
    progress.wait_read()
    progress.transfer.finish(40, other)
    assert progress.fetch.result(PATIENCE).early_bytes > progress.fetch.result(0).nbytes * 16 // 40
    assert pair.wrong_bytes() == 0


def test_an_offer_that_a_preempted_request_had_made_is_withdrawn(pair: Pair) -> None:
    transfer = pair.prefill.begin_transfer(new_transfer_id(), "request")
    transfer.offer_chunk(16, SOURCE_BLOCKS, pair.released.put)
    transfer.give_up_blocks()
    assert pair.released.get(timeout=PATIENCE).reason is ReleaseReason.WITHDRAWN


@pytest.mark.parametrize("parts", [0, 1, 2])
def test_an_abort_after_so_many_parts_ends_it_once_and_frees_both_sides(progress: Progress, parts: int) -> None:
    for number in range(parts):
        progress.offer(8 * number + 8)
        progress.wait_read()
    progress.fetch.abort()
    with pytest.raises(TransportError, match="aborted"):
        progress.fetch.result(PATIENCE)
    assert progress.fetch.wait_reusable(PATIENCE)
    progress.finish()
    assert progress.pair.released.get(timeout=PATIENCE).reason is ReleaseReason.WITHDRAWN


def test_an_abort_while_the_final_offer_waits_for_room_frees_both_sides(pair: Pair) -> None:
    transfer_id = new_transfer_id()
    transfer = pair.prefill.begin_transfer(transfer_id, "request")
    fetch = pair.decode.follow(transfer_id, pair.prefill.address)
    transfer.finish(40, SOURCE_BLOCKS, pair.released.put)
    wait_until(lambda: bool(pair.decode._coordinator._side.fetches))
    fetch.abort()
    assert fetch.wait_reusable(PATIENCE)
    assert pair.released.get(timeout=PATIENCE).reason in (ReleaseReason.ACKNOWLEDGED, ReleaseReason.WITHDRAWN)


def test_room_may_come_after_the_final_offer(pair: Pair) -> None:
    transfer_id = new_transfer_id()
    transfer = pair.prefill.begin_transfer(transfer_id, "request", prompt="digest")
    fetch = pair.decode.follow(transfer_id, pair.prefill.address, num_tokens=40, prompt="digest")
    transfer.offer_chunk(16, SOURCE_BLOCKS)
    transfer.finish(40, SOURCE_BLOCKS, pair.released.put)
    pair.decode.begin_followed(fetch, TARGET_BLOCKS, start_token=5)
    fetch.result(PATIENCE)
    assert pair.released.get(timeout=PATIENCE).reason is ReleaseReason.ACKNOWLEDGED


@pytest.mark.parametrize("parts", [0, 1])
def test_a_prefill_engine_that_is_killed_in_the_midst_fails_the_request(progress: Progress, parts: int) -> None:
    for _ in range(parts):
        progress.offer(8)
        progress.wait_read()
    wait_until(lambda: progress.pair.prefill.metrics().total("handshakes") == 1)
    progress.pair.kill_prefill()
    with pytest.raises(KVWeaveError):
        progress.fetch.result(PATIENCE)
    assert progress.fetch.wait_reusable(PATIENCE)


def test_a_request_that_ends_unfinished_fails_who_follows_it(progress: Progress) -> None:
    progress.offer(8)
    progress.wait_read()
    progress.transfer.abandon()
    progress.transfer.abandon()
    with pytest.raises(TransferRefused, match="withdrawn"):
        progress.fetch.result(PATIENCE)
    with pytest.raises(LocalProtocolError, match="is over"):
        progress.transfer.offer_chunk(8, SOURCE_BLOCKS)


def test_a_final_offer_that_never_comes_fails_the_request_in_time(progress: Progress) -> None:
    progress.offer(8)
    progress.wait_read()
    progress.pair.clock.advance(121)
    progress.fetch.wait_reusable(PATIENCE)
    assert progress.fetch.failed is not None
    assert progress.fetch.failed.reason in (FailureReason.UNANSWERED, FailureReason.PEER_LOST)


def test_another_prompt_is_refused(pair: Pair) -> None:
    transfer_id = new_transfer_id()
    transfer = pair.prefill.begin_transfer(transfer_id, "request", prompt="this")
    fetch = pair.decode.follow(transfer_id, pair.prefill.address, TARGET_BLOCKS, prompt="that")
    transfer.finish(40, SOURCE_BLOCKS, pair.released.put)
    with pytest.raises(KVWeaveError, match="another prompt"):
        fetch.result(PATIENCE)
    assert pair.released.get(timeout=PATIENCE).reason is ReleaseReason.WITHDRAWN


def test_an_id_is_one_requests_until_its_offer_has_ended(pair: Pair) -> None:
    transfer_id = new_transfer_id()
    transfer = pair.prefill.begin_transfer(transfer_id, "request")
    with pytest.raises(LocalProtocolError, match="another one has its transfer id"):
        pair.prefill.begin_transfer(transfer_id, "other")
    reference = transfer.finish(40, SOURCE_BLOCKS, pair.released.put)
    assert reference is not None
    pair.prefill.withdraw(reference)
    pair.released.get(timeout=PATIENCE)
    pair.prefill.begin_transfer(transfer_id, "other").abandon()


def test_a_final_offer_that_cannot_be_made_ends_the_transfer(progress: Progress) -> None:
    with pytest.raises(KVWeaveError, match="num_blocks"):
        progress.transfer.finish(40, {"full": [99]})
    with pytest.raises(TransferRefused):
        progress.fetch.result(PATIENCE)


def test_nothing_valid_at_the_end_fails_who_follows(progress: Progress) -> None:
    assert progress.transfer.finish(0, SOURCE_BLOCKS, progress.pair.released.put) is None
    with pytest.raises(TransferRefused):
        progress.fetch.result(PATIENCE)


@pytest.mark.parametrize("made", ["short", "x" * 201, 7, None], ids=["short", "long", "a number", "nothing"])
def test_an_id_that_could_be_guessed_is_refused(made: object) -> None:
    with pytest.raises(LocalProtocolError, match="nobody guesses"):
        checked_transfer_id(made)


def test_made_ids_are_good_and_never_the_same() -> None:
    assert len({checked_transfer_id(new_transfer_id()) for _ in range(100)}) == 100


def test_only_groups_that_keep_tokens_can_be_offered_early() -> None:
    model = model_of_groups({"full": [heads_of(4)], "state": [mamba2_of(2, 4)]})
    assert kept_groups(engine(model)) == {"full"}
    assert kept_groups(engine(model_of_groups({"state": [mamba2_of(2, 4)]}))) == frozenset()
