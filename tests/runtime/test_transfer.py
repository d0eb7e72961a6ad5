"""Prompts that are offered while they are prefilled, over the memory transport."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvweave.protocol.effects import ReleaseReason
from kvweave.runtime import Fetch, ProgressiveTransfer, new_transfer_id
from tests.runtime.pair import PATIENCE, SOURCE_BLOCKS, TARGET_BLOCKS, Pair, joined


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
