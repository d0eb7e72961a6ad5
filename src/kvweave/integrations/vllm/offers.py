"""Offers of one scheduler's finished requests: their blocks stay until they are read or their lease ends.

A prompt of N tokens is offered as N - 1: the decode engine computes the last one in any case, since it needs its
logits. Where a layer keeps a state, a window or a chunk, the prefill engine must not compute it either: what has moved
past that token can't be turned back. So for such models the prompt is cut by one token when it arrives.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, iter_layer_specs
from vllm.v1.request import RequestStatus

from kvweave.errors import KVWeaveError
from kvweave.integrations.vllm.block_ids import BlockIds
from kvweave.integrations.vllm.params import asks_for_offer
from kvweave.runtime import PrefillEngine

logger = logging.getLogger("kvweave")

_CUT = "kvweave_cut"


class Offers:
    """All offers of one engine. One thread calls it; releases come from the polling thread by a queue."""

    def __init__(self, engine: PrefillEngine, block_ids: BlockIds, stops_early: bool) -> None:
        self._engine = engine
        self._block_ids = block_ids
        self._stops_early = stops_early
        self._released: deque[str] = deque()

    def arrive(self, request: Any) -> None:
        """A new request; cuts the prompt's last token where the model's caches ask for it."""
        if asks_for_offer(request) and self._stops_early and not request.skip_reading_prefix_cache:
            cut_last_token(request)

    def finish(self, request: Any, block_ids: Sequence[Sequence[int]]) -> dict[str, Any] | None:
        """Offers a finished request's blocks; the params for the decode engine, None when nothing is offered."""
        done = request.status in (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED)
        num_tokens = self._offered_tokens(request)
        if not asks_for_offer(request) or not done or num_tokens < 1:
            return None
        try:
            tables = self._block_ids.tables(block_ids, num_tokens)
            reference = self._engine.offer(
                request.request_id, num_tokens, tables, lambda released: self._released.append(released.request_id)
            )
        except KVWeaveError as error:
            logger.warning("request %s: not offered: %s", request.request_id, error)
            return None
        return None if reference is None else reference.params()

    def take_released(self) -> set[str]:
        """Requests whose blocks are free since."""
        released = set()
        while self._released:
            released.add(self._released.popleft())
        return released

    def _offered_tokens(self, request: Any) -> int:
        """How many tokens of a finished request are valid; 0 when it was computed past what can be handed over."""
        computed = int(request.num_computed_tokens)
        if not self._stops_early:
            return min(computed, int(request.num_prompt_tokens) - 1)
        cut = (request.kv_transfer_params or {}).get(_CUT)
        return computed if cut and computed == request.num_prompt_tokens else 0


def stops_early(kv_cache_config: Any) -> bool:
    """Whether a prefill engine must stop one token before the prompt's end."""
    return any(
        not isinstance(spec, FullAttentionSpec | MLAAttentionSpec) or getattr(spec, "tokens_per_state", 1) != 1
        for group in kv_cache_config.kv_cache_groups
        for spec in iter_layer_specs(group.kv_cache_spec)
    )


def cut_last_token(request: Any) -> None:
    """Takes the last token off a prompt of at least two, once; what is sampled in its place is nobody's."""
    params = request.kv_transfer_params
    if params.get(_CUT) or request.num_prompt_tokens < 2:
        return
    if request.prompt_token_ids is not None:
        del request.prompt_token_ids[-1:]
    if request.prompt_embeds is not None:
        request.prompt_embeds = request.prompt_embeds[:-1]
    del request._all_token_ids[-1:]
    request.num_prompt_tokens -= 1
    request.max_tokens = 1
    params[_CUT] = True
