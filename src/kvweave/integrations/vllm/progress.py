"""Prompts of one scheduler that are offered while they are prefilled, as far as their steps have been processed.

Three things of vLLM decide what may be offered:

- A scheduled step is not over: ``num_in_flight_tokens`` counts what was scheduled and not processed yet.
- Blocks of a running request are its own until it ends or is preempted; then vLLM gives them to others at once, in the
  midst of ``schedule``. We hear of it in the same call (``build_connector_meta``), before another step computes.
- A block that was found in the prefix cache may belong to a request of the same step, so nothing is offered before a
  step of the request itself was processed.

Only full blocks are offered, and of what a drafter may still write over nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm.v1.request import RequestStatus

from kvweave.errors import KVWeaveError
from kvweave.integrations.vllm.block_ids import BlockIds
from kvweave.protocol.effects import ReleaseReason
from kvweave.runtime import OfferReference, PrefillEngine, ProgressiveTransfer, Released
from kvweave.runtime.transfer import OnRelease

logger = logging.getLogger("kvweave")


@dataclass(slots=True)
class _Prefilling:
    """``found`` tokens were in the prefix cache when it was scheduled, None while it is not."""

    request: Any
    transfer: ProgressiveTransfer
    preemptions: int
    found: int | None = None
    offered: int = 0

    def computed(self) -> int:
        """Tokens of processed steps; what an earlier life of the request still has in flight counts against it."""
        return int(self.request.num_computed_tokens) - int(self.request.num_in_flight_tokens)


class Progress:
    """All such prompts of one engine. One thread calls it; ``on_release`` hears of every offer's release."""

    def __init__(self, engine: PrefillEngine, block_ids: BlockIds, kept_back: int, block_tokens: int) -> None:
        self._engine = engine
        self._block_ids = block_ids
        self._kept_back = kept_back
        self._block_tokens = block_tokens
        self._prefilling: dict[str, _Prefilling] = {}

    def __len__(self) -> int:
        return len(self._prefilling)

    def begin(self, request: Any, transfer_id: str, prompt: str) -> None:
        """A request whose prompt is followed; where it cannot be, its offer comes at the end as always."""
        try:
            transfer = self._engine.begin_transfer(transfer_id, request.request_id, prompt)
        except KVWeaveError as error:
            logger.warning("request %s: not offered in chunks: %s", request.request_id, error)
            return
        self._prefilling[request.request_id] = _Prefilling(request, transfer, int(request.num_preemptions))

    def offer(self, kv_cache_manager: Any, begin: Callable[[str], None], on_release: OnRelease) -> None:
        """Offers what has been computed since. ``begin`` hears of every offer first, ``on_release`` of its end."""
        for prefilling in self._prefilling.values():
            whole = self._whole_tokens(prefilling)
            if whole > prefilling.offered and kv_cache_manager is not None:
                prefilling.offered = whole
                begin(prefilling.request.request_id)
                self._offer(prefilling, kv_cache_manager, on_release)

    def finish(self, request: Any, tables: Any, num_tokens: int, on_release: OnRelease) -> OfferReference | None:
        """The final offer of a request; None when it is none of these. Raises what ``PrefillEngine.offer`` raises."""
        prefilling = self._prefilling.pop(request.request_id, None)
        if prefilling is None:
            return self._engine.offer(request.request_id, num_tokens, tables, on_release)
        self._look_at_blocks(prefilling)
        return prefilling.transfer.finish(num_tokens, tables, on_release)

    def abandon(self, request: Any) -> None:
        """A request ends without an offer."""
        prefilling = self._prefilling.pop(request.request_id, None)
        if prefilling is not None:
            prefilling.transfer.abandon()

    def _whole_tokens(self, prefilling: _Prefilling) -> int:
        """How many tokens of a request could be offered by now."""
        self._look_at_blocks(prefilling)
        request = prefilling.request
        if request.status != RequestStatus.RUNNING:
            return 0
        if prefilling.found is None:
            prefilling.found = int(request.num_computed_tokens)
        computed = prefilling.computed()
        return (
            0
            if computed <= prefilling.found
            else (computed - self._kept_back) // self._block_tokens * self._block_tokens
        )

    def _offer(self, prefilling: _Prefilling, kv_cache_manager: Any, on_release: OnRelease) -> None:
        request_id, offered = prefilling.request.request_id, None
        try:
            tables = self._block_ids.chunk_tables(kv_cache_manager.get_block_ids(request_id))
            offered = prefilling.transfer.offer_chunk(prefilling.offered, tables, on_release)
        except KVWeaveError as error:
            logger.warning("request %s: a chunk was not offered: %s", request_id, error)
        if offered is None:
            on_release(Released(request_id, 0, ReleaseReason.NOTHING_VALID))

    def _look_at_blocks(self, prefilling: _Prefilling) -> None:
        """Withdraws what was offered of a request that has lost its blocks, or computes a part of them anew."""
        request = prefilling.request
        again = prefilling.found is not None and 0 <= prefilling.computed() < prefilling.offered
        if request.num_preemptions == prefilling.preemptions and not again:
            return
        prefilling.preemptions = int(request.num_preemptions)
        prefilling.found = None
        prefilling.offered = 0
        prefilling.transfer.give_up_blocks()
