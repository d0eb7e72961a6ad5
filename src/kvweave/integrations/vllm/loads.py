"""Fetches of the requests of one scheduler: from a reference in a request to one report of success or failure.

::

    arrives -> queued (heartbeats keep the offer) -> loading -> reported -> over
                  |- nothing is missing here, or it ends unscheduled: the offer is given back unread

Rules:

- An offer is loaded once. A second request that names it (n > 1, a resent request) waits until the first one's tokens
  are in the prefix cache, and computes what it does not find there.
- What is loaded is what the offer holds, from the first token on that this engine has not; the rest of the prompt, one
  token at least, is computed here.
- A failure is reported when no read writes into the request's blocks any more, a success when it is delivered.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any

from kvweave.errors import KVWeaveError, LocalProtocolError, RemoteProtocolError
from kvweave.integrations.vllm.block_ids import BlockIds
from kvweave.integrations.vllm.params import followed_transfer, mark_taken, names_offer
from kvweave.integrations.vllm.pause import Pause
from kvweave.integrations.vllm.prompts import is_of, prompt_digest
from kvweave.integrations.vllm.stats import TransferStats
from kvweave.protocol.effects import FailureReason
from kvweave.protocol.reference import OfferReference
from kvweave.runtime import DecodeEngine, Delivered, Fetch

REMEMBERED_OFFERS = 4096

logger = logging.getLogger("kvweave")

_Key = tuple[str, str, int]


@dataclass(slots=True)
class _Load:
    """One request's fetch, of an offer or of a followed transfer, which will have ``num_tokens`` in the end.

    ``left`` says that its request has ended before it, ``missing`` what vLLM was told last.
    """

    key: _Key
    num_tokens: int
    reference: OfferReference | None
    fetch: Fetch
    begun: bool = False
    left: bool = False
    missing: int = 0


@dataclass(frozen=True, slots=True)
class Begun:
    """A fetch that has begun, and how many tokens its request will have then."""

    number: int
    num_tokens: int


class Loads:
    """All fetches of one engine's requests. One thread calls it; reports of the polling thread come by queues.

    ``computed_here`` tokens at a prompt's end are not offered by a prefill engine of this model.
    """

    def __init__(
        self,
        engine: DecodeEngine,
        block_ids: BlockIds,
        recompute_threshold: int,
        stats: TransferStats,
        pause: Pause,
        computed_here: int = 1,
    ) -> None:
        self._computed_here = computed_here
        self._engine = engine
        self._pause = pause
        self._block_ids = block_ids
        self._recompute_threshold = recompute_threshold
        self._stats = stats
        self._loads: dict[str, _Load] = {}
        self._followers: dict[str, _Key] = {}
        self._owners: dict[_Key, str] = {}
        self._spent: OrderedDict[_Key, None] = OrderedDict()
        self._unreported: set[str] = set()
        self._delivered: deque[tuple[str, Delivered]] = deque()
        self._failed: deque[str] = deque()

    @property
    def under_way(self) -> bool:
        """Whether a load has begun and was not yet reported as ended."""
        return bool(self._unreported)

    @property
    def silent(self) -> bool:
        """Whether something is under way and there is nothing to report of it."""
        return bool(self._unreported) and not self._delivered and not self._failed

    def arrive(self, request: Any) -> None:
        """A new request; holds its offer while it is queued, or follows what will be offered."""
        if not names_offer(request):
            return
        try:
            load = self._begin_load(request)
        except KVWeaveError as error:
            self._stats.count("failed", "wrong_reference" if isinstance(error, RemoteProtocolError) else "not_held")
            logger.warning("request %s: its prompt is computed here: %s", request.request_id, error)
            mark_taken(request)
            return
        if load is not None:
            self._owners[load.key] = request.request_id
            self._loads[request.request_id] = load

    def missing_tokens(self, request: Any, num_computed: int) -> int | None:
        """How many tokens beyond the ``num_computed`` first ones will be loaded; None while that is undecided."""
        if request.request_id in self._followers:
            return None if self._followers[request.request_id] in self._owners else 0
        load = self._loads.get(request.request_id)
        if load is None or load.begun or request.skip_reading_prefix_cache:
            return 0
        missing = load.num_tokens - num_computed
        load.missing = missing if missing >= max(self._recompute_threshold, 1) else 0
        return load.missing

    def allocate(self, request: Any, block_ids: Any, num_loaded: int, fenced: bool = False) -> Begun | None:
        """Begins the fetch into a request's blocks; with nothing to load, gives the offer back unread."""
        self._followers.pop(request.request_id, None)
        load = self._loads.get(request.request_id)
        if load is None:
            return None
        mark_taken(request)
        if not num_loaded:
            self._close(request.request_id)
            return None
        load.begun = True
        self._unreported.add(request.request_id)
        num_tokens = load.num_tokens
        try:
            if num_loaded != load.missing:
                raise LocalProtocolError(f"vLLM wants {num_loaded} tokens, {load.missing} were promised")
            tables = self._block_ids.tables(block_ids, num_tokens)
            if load.reference is None:
                self._engine.begin_followed(load.fetch, tables, num_tokens - num_loaded, fenced)
            else:
                self._engine.begin(load.fetch, load.reference, tables, num_tokens - num_loaded, fenced)
        except KVWeaveError as error:
            self._stats.count("failed", "not_begun")
            _warn(request.request_id, "not_begun", error)
            load.fetch.abort()
            self._failed.append(request.request_id)
            return None
        load.fetch.add_done_callback(lambda fetch: self._hear(request.request_id, fetch))
        return Begun(load.fetch.number, num_tokens)

    def finish(self, request: Any) -> None:
        """The request ends, whatever stage it is in; one that is loading is reported once its blocks are free."""
        self._followers.pop(request.request_id, None)
        load = self._loads.get(request.request_id)
        if load is None:
            return
        if load.begun and not load.fetch.done():
            load.left = True
            load.fetch.abort()
        else:
            self._close(request.request_id)

    def take_delivered(self) -> dict[str, Delivered]:
        """What was delivered since, by request."""
        delivered = dict(self._delivered.popleft() for _ in range(len(self._delivered)))
        for request_id in delivered:
            self._note_reported(request_id)
        return delivered

    def take_failed(self) -> frozenset[str]:
        """The requests whose load has failed since, and whose blocks nothing writes into any more."""
        failed = frozenset(self._failed.popleft() for _ in range(len(self._failed)))
        for request_id in failed:
            self._note_reported(request_id)
        return failed

    def _begin_load(self, request: Any) -> _Load | None:
        """Holds or follows; None when another request does that already."""
        followed = followed_transfer(request)
        reference = None if followed else self._reference(request)
        key = _key(reference) if reference else (followed.peer, followed.transfer_id, 0) if followed else ("", "", 0)
        if key in self._owners or key in self._spent:
            self._followers[request.request_id] = key
            return None
        if reference is not None:
            return _Load(key, reference.num_tokens, reference, self._engine.hold(reference))
        num_tokens = max(int(request.num_prompt_tokens) - self._computed_here, 0)
        fetch = self._engine.follow(
            key[1], key[0], request_id=request.request_id, num_tokens=num_tokens,
            prompt=prompt_digest(request, num_tokens),
        )  # fmt: skip
        return _Load(key, num_tokens, None, fetch)

    def _reference(self, request: Any) -> OfferReference:
        """The offer that a request names; raises ``RemoteProtocolError`` when it is malformed or of another prompt."""
        params = request.kv_transfer_params
        reference = OfferReference.from_params(params, self._engine.peers.allows)
        if not is_of(params, request, reference.num_tokens):
            raise RemoteProtocolError(
                f"kv_transfer_params: {reference.num_tokens} tokens of {reference.request_id} are not the beginning of "
                f"this prompt of {request.num_prompt_tokens} (tokens, adapter and media compared); pass on the params "
                "of the same request"
            )
        return reference

    def _note_reported(self, request_id: str) -> None:
        self._unreported.discard(request_id)
        if request_id in self._loads and self._loads[request_id].left:
            self._close(request_id)

    def _close(self, request_id: str) -> None:
        """The record ends; an offer that nobody read is given back."""
        load = self._loads.pop(request_id)
        if not load.begun:
            load.fetch.abort()
        self._owners.pop(load.key, None)
        self._spent[load.key] = None
        while len(self._spent) > REMEMBERED_OFFERS:
            self._spent.popitem(last=False)

    def _hear(self, request_id: str, fetch: Fetch) -> None:
        """On the polling thread: the fetch was delivered or has failed."""
        if fetch.failed is None:
            delivered = fetch.result()
            self._stats.add_transfer(delivered)
            self._delivered.append((request_id, delivered))
            self._pause.end()
            return
        if fetch.failed.reason is not FailureReason.ABORTED:
            _warn(request_id, fetch.failed.reason.value, fetch.failed.text)
        fetch.add_reusable_callback(lambda _: self._lose(request_id))

    def _lose(self, request_id: str) -> None:
        """On the polling thread: nothing writes any more into the blocks of a failed fetch."""
        self._failed.append(request_id)
        self._pause.end()


def _warn(request_id: str, reason: str, text: object) -> None:
    logger.warning("request %s: not loaded (%s): %s", request_id, reason, text)


def _key(reference: OfferReference) -> _Key:
    return reference.engine_id, reference.request_id, reference.generation
