"""Offers of one scheduler's finished requests: their blocks stay until they are read or their lease ends.

A prompt of N tokens is offered as N - 1: the decode engine computes the last one in any case, since it needs its
logits. Where a layer keeps a state, a window or a chunk, the prefill engine must not compute it either: what has moved
past that token can't be turned back. Drafters of several modules keep back their whole lookahead (vLLM's
``num_prefill_lookahead_tokens``), since they would cache what they only guessed. So for such models the prompt is cut
when it arrives.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from math import lcm
from typing import Any

from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, iter_layer_specs
from vllm.v1.request import RequestStatus

from kvweave.errors import KVWeaveError
from kvweave.integrations.vllm.block_ids import BlockIds
from kvweave.integrations.vllm.params import asks_for_offer, nothing_offered, offered_transfer
from kvweave.integrations.vllm.pause import Pause
from kvweave.integrations.vllm.progress import Progress
from kvweave.integrations.vllm.prompts import prompt_digest, sign_params
from kvweave.runtime import OfferReference, PrefillEngine, Released

logger = logging.getLogger("kvweave")

REMEMBERED_FAMILIES = 1024

_DONE = (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED)


class Offers:
    """All offers of one engine. One thread calls it; releases come from the polling thread by a queue."""

    def __init__(
        self, engine: PrefillEngine, block_ids: BlockIds, kept_back: int, progress: Progress, pause: Pause
    ) -> None:
        self._engine = engine
        self._pause = pause
        self._block_ids = block_ids
        self._kept_back = kept_back
        self._cut: set[str] = set()
        self._siblings: dict[str, OfferReference] = {}
        self._released: deque[str] = deque()
        self._progress = progress
        self._pinned: Counter[str] = Counter()
        self._finished: set[str] = set()

    def arrive(self, request: Any) -> None:
        """A new request; cuts the prompt's end where the model's caches ask for it.

        Not with prompt log-probabilities: their decode engine computes the whole prompt.
        """
        if not asks_for_offer(request) or request.skip_reading_prefix_cache:
            return
        if self._kept_back and request.num_prompt_tokens > self._kept_back:
            cut_prompt(request, self._kept_back)
            self._cut.add(request.request_id)
        transfer_id = offered_transfer(request)
        if transfer_id is not None:
            num_tokens = int(request.num_prompt_tokens) - (0 if request.request_id in self._cut else 1)
            self._progress.begin(request, transfer_id, prompt_digest(request, num_tokens))

    @property
    def progressing(self) -> bool:
        """Whether prompts are offered while they are prefilled, so that every processed step is to be heard of."""
        return bool(len(self._progress))

    def offer_progress(self, kv_cache_manager: Any) -> None:
        """Offers what has been computed since of prompts that are followed."""
        self._progress.offer(kv_cache_manager, self._pin, self._hear)

    def finish(self, request: Any, block_ids: Sequence[Sequence[int]]) -> dict[str, Any] | None:
        """Offers a finished request's blocks; the params for the decode engine, None when none were asked for."""
        num_tokens = self._offered_tokens(request)
        self._cut.discard(request.request_id)
        if not asks_for_offer(request) or request.status not in _DONE:
            self._progress.abandon(request)
            return None
        reference = self._offer(request, block_ids, num_tokens) if num_tokens > 0 else None
        if reference is None:
            self._progress.abandon(request)
            return nothing_offered()
        self._replace_sibling(reference)
        return sign_params(reference.params(), request, num_tokens)

    def take_released(self) -> set[str]:
        """Finished requests whose blocks are free since: all their offers have been released."""
        released = set()
        while self._released:
            request_id = self._released.popleft()
            if self._unpin(request_id) and request_id in self._finished:
                self._finished.discard(request_id)
                released.add(request_id)
        return released

    def _offer(self, request: Any, block_ids: Sequence[Sequence[int]], num_tokens: int) -> OfferReference | None:
        try:
            tables = self._block_ids.tables(block_ids, num_tokens)
            self._pin(request.request_id)
            reference = self._progress.finish(request, tables, num_tokens, self._hear)
        except KVWeaveError as error:
            logger.warning("request %s: not offered: %s", request.request_id, error)
            self._unpin(request.request_id)
            return None
        self._finished.add(request.request_id)
        return reference

    def _pin(self, request_id: str) -> None:
        """An offer is about to be made."""
        self._pinned[request_id] += 1

    def _unpin(self, request_id: str) -> bool:
        """An offer has been released, or was not made; whether the request has none left."""
        self._pinned[request_id] -= 1
        if self._pinned[request_id]:
            return False
        del self._pinned[request_id]
        return True

    def _hear(self, released: Released) -> None:
        """On the polling thread: an offer's blocks are free."""
        self._released.append(released.request_id)
        self._pause.end()

    def _replace_sibling(self, reference: OfferReference) -> None:
        """Of several samples of one prompt (n > 1) the last one's params reach the client, so only it is kept."""
        family = _family(reference.request_id)
        if family is None:
            return
        earlier = self._siblings.pop(family, None)
        if earlier is not None:
            self._engine.withdraw(earlier)
        self._siblings[family] = reference
        while len(self._siblings) > REMEMBERED_FAMILIES:
            self._siblings.pop(next(iter(self._siblings)))

    def _offered_tokens(self, request: Any) -> int:
        """How many tokens of a finished request are valid; 0 when it was computed past what can be handed over."""
        computed = int(request.num_computed_tokens)
        if not self._kept_back:
            return min(computed, int(request.num_prompt_tokens) - 1)
        whole = request.request_id in self._cut and computed == request.num_prompt_tokens
        return computed if whole else 0


def kept_back(vllm_config: Any, kv_cache_config: Any) -> int:
    """How many tokens before the prompt's end a prefill engine must stop."""
    early = any(not _keeps_all(spec) for spec in _layer_specs(kv_cache_config))
    return max(int(early), int(vllm_config.num_prefill_lookahead_tokens) - 1)


def whole_block_tokens(vllm_config: Any, kv_cache_config: Any) -> int:
    """Tokens after which the blocks of all groups that keep all tokens are full."""
    parallel = vllm_config.parallel_config
    sizes = [
        int(group.kv_cache_spec.block_size)
        for group in kv_cache_config.kv_cache_groups
        if any(_keeps_all(spec) for spec in iter_layer_specs(group.kv_cache_spec))
    ]
    return lcm(*sizes) * int(parallel.decode_context_parallel_size) * int(parallel.prefill_context_parallel_size)


def only_full_and_states(kv_cache_config: Any) -> bool:
    """Whether every layer keeps all tokens, or none but a state."""
    return all(_keeps_all(spec) or isinstance(spec, MambaSpec) for spec in _layer_specs(kv_cache_config))


def cut_prompt(request: Any, num_tokens: int) -> None:
    """Takes the end off a prompt that is longer; what is sampled in its place is nobody's."""
    if request.prompt_token_ids is not None:
        del request.prompt_token_ids[-num_tokens:]
    if request.prompt_is_token_ids is not None:
        del request.prompt_is_token_ids[-num_tokens:]
    if request.prompt_embeds is not None:
        request.prompt_embeds = request.prompt_embeds[:-num_tokens]
    del request._all_token_ids[-num_tokens:]
    request.num_prompt_tokens -= num_tokens
    request.max_tokens = 1


def _layer_specs(kv_cache_config: Any) -> Iterator[Any]:
    for group in kv_cache_config.kv_cache_groups:
        yield from iter_layer_specs(group.kv_cache_spec)


def _keeps_all(spec: Any) -> bool:
    return isinstance(spec, FullAttentionSpec) and spec.tokens_per_state == 1


def _family(request_id: str) -> str | None:
    """What the ids of several samples share: vLLM puts their number in front (``ParentRequest.get_child_info``)."""
    number, _, family = request_id.partition("_")
    return family if number.isdecimal() and family else None
