"""A prefill engine and a decode engine that compute with transformers and keep their cache in kvweave's memory.

Each is one engine of any shape in one process: every rank has its own memory and its own transport. The model itself
runs unsharded; what is sharded, paged, offered and fetched is its cache::

    prefill   tokens[:-1] -> transformers -> logical arrays -> blocks on every rank -> offer
    decode    fetch -> blocks on every rank -> logical arrays -> transformers -> last prompt token, answer

Several threads may call one engine: their transfers overlap, the model computes for one of them at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any

from kvweave.core.cache_config import CacheConfig
from kvweave.core.layout import EngineLayout
from kvweave.core.parallel import ParallelConfig
from kvweave.core.portion import Portion
from kvweave.engines.hf.block_pool import BlockPool
from kvweave.engines.hf.paged_memory import PagedMemory, Tables
from kvweave.engines.hf.pinned import PinnedTables
from kvweave.engines.hf.runner import ModelRunner
from kvweave.errors import ConfigurationError, KVWeaveError
from kvweave.runtime import DecodeEngine, Delivered, Fetch, PrefillEngine, ProgressiveTransfer, Timing
from kvweave.runtime.closing import Closing
from kvweave.runtime.naming import TransportFactory

_SAMPLED_WEIGHTS = 4096


@dataclass(frozen=True, slots=True)
class EngineShape:
    """How an embedded engine is cut and laid out.

    Raises ``ConfigurationError`` for what this engine cannot be: several engines, another dtype, other memory.
    """

    parallel: ParallelConfig
    cache: CacheConfig

    def __post_init__(self) -> None:
        for name, stated, possible, remedy in (
            ("dp", self.parallel.dp, 1, "start one engine per data parallel rank"),
            ("dtype", self.cache.dtype or "float32", "float32", "it computes and keeps float32: leave dtype out"),
            ("memory", str(self.cache.memory), "DRAM", "it keeps its cache in the machine's memory: leave it out"),
        ):
            if stated != possible:
                raise ConfigurationError(f"{name}: {stated}, but the embedded engine has {name}={possible}; {remedy}")


@dataclass(frozen=True, slots=True)
class Answer:
    """What the decode engine made of a request; ``delivered`` is None when nothing had to be moved."""

    tokens: tuple[int, ...]
    delivered: Delivered | None


class _Store:
    """The memory and the free blocks of one engine. Blocks come back from other threads through a queue."""

    def __init__(self, runner: ModelRunner, shape: EngineShape, seed: int) -> None:
        model = replace(runner.model, fingerprint=f"{runner.model.fingerprint}-{weights_fingerprint(runner)}")
        self.memory = PagedMemory(EngineLayout.build(model, shape.parallel, shape.cache))
        self._pool = BlockPool(self.memory.layout, seed)
        self._returned: SimpleQueue[Tables] = SimpleQueue()
        self._using_pool = Lock()

    def allocate(self, num_tokens: int) -> dict[str, list[int]]:
        with self._using_pool:
            self._collect()
            return self._pool.allocate(num_tokens)

    def give_back(self, tables: Tables) -> None:
        """Callable from any thread."""
        self._returned.put(tables)

    def blocks_in_use(self, patience_seconds: float) -> int:
        """Blocks that are not free, after waiting that long for each request that still has some."""
        with self._using_pool:
            with suppress(Empty):
                while self._pool.used():
                    self._pool.release(self._returned.get(timeout=patience_seconds))
            return self._pool.used()

    def _collect(self) -> None:
        with suppress(Empty):
            while True:
                self._pool.release(self._returned.get_nowait())


class HuggingFacePrefill(Closing):
    """Prefills prompts and offers their caches; decode engines reach it at ``bind``."""

    def __init__(
        self,
        runner: ModelRunner,
        shape: EngineShape,
        transport: TransportFactory,
        lease_seconds: float = 60.0,
        bind: str = "127.0.0.1:0",
    ) -> None:
        self._runner = runner
        self._computing = Lock()
        self._store = _Store(runner, shape, seed=1)
        self._engine = PrefillEngine(
            self._store.memory.layout, transport=transport, lease_seconds=lease_seconds, bind=bind
        )

    @property
    def address(self) -> str:
        """Where decode engines reach it."""
        return self._engine.address

    def prefill(self, request_id: str, tokens: Sequence[int]) -> Mapping[str, Any] | None:
        """Computes all but the last token and offers the cache: the ``kv_transfer_params`` for the decode engine.

        None for a prompt of one token: there is nothing to move.
        """
        if len(tokens) < 2:
            return None
        num_tokens = len(tokens) - 1
        with self._computing:
            captured = self._runner.capture(self._runner.prefill(tokens[:-1]))
        tables = self._store.allocate(num_tokens)
        self._store.memory.write(captured, tables)
        offered = self._engine.offer(
            request_id, num_tokens, blocks=tables, on_release=lambda *_: self._store.give_back(tables)
        )
        return None if offered is None else offered.params()

    def prefill_in_chunks(
        self, request_id: str, tokens: Sequence[int], transfer_id: str, chunk_tokens: int, preempted_after: int = 0
    ) -> Mapping[str, Any] | None:
        """The same in chunks, each offered to whoever follows ``transfer_id`` as soon as it is computed.

        ``preempted_after`` so many chunks, if any, the request loses its blocks to another one and is computed anew.
        """
        transfer = self._engine.begin_transfer(transfer_id, request_id)
        try:
            if len(tokens) < 2:
                return None
            if preempted_after:
                lost = self._compute_chunks(transfer, tokens[:-1], chunk_tokens, preempted_after)
                transfer.give_up_blocks()
                self._store.memory.scribble(lost.tables)
                lost.let_go()
            pinned = self._compute_chunks(transfer, tokens[:-1], chunk_tokens)
            with ExitStack() as stack:
                stack.callback(pinned.let_go)
                offered = transfer.finish(len(tokens) - 1, pinned.tables, pinned.let_go)
                stack.pop_all()
            return None if offered is None else offered.params()
        finally:
            transfer.abandon()

    def _compute_chunks(
        self, transfer: ProgressiveTransfer, tokens: Sequence[int], chunk_tokens: int, most_chunks: int = 0
    ) -> PinnedTables:
        """Computes tokens, all or those of so many chunks, and offers each chunk but the last one of all."""
        pinned = PinnedTables(self._store.allocate(len(tokens)), self._store.give_back)
        session = None
        with ExitStack() as stack:
            stack.callback(pinned.let_go)
            for start in range(0, len(tokens), chunk_tokens)[: most_chunks or None]:
                with self._computing:
                    session = self._runner.prefill(tokens[start : start + chunk_tokens], session)
                    captured = self._runner.capture(session)
                last = captured.num_tokens == len(tokens)
                self._store.memory.write(captured, pinned.tables, Portion(start, others=last))
                if not last:
                    _offer_chunk(transfer, captured.num_tokens, pinned)
            stack.pop_all()
        return pinned

    def blocks_in_use(self, patience_seconds: float = 10.0) -> int:
        """Blocks that are not free; waits for offers that are about to be released."""
        return self._store.blocks_in_use(patience_seconds)

    def close(self) -> None:
        """Ends the engine; offers end with it."""
        self._engine.close()


class HuggingFaceDecode(Closing):
    """Fetches offered caches and decodes."""

    def __init__(
        self, runner: ModelRunner, shape: EngineShape, transport: TransportFactory, timing: Timing | None = None
    ) -> None:
        self._runner = runner
        self._computing = Lock()
        self._store = _Store(runner, shape, seed=2)
        self._engine = DecodeEngine(self._store.memory.layout, transport=transport, timing=timing)

    def decode(
        self,
        tokens: Sequence[int],
        params: Mapping[str, Any] | None,
        max_new_tokens: int,
        stop_tokens: Sequence[int] = (),
        timeout_seconds: float = 60.0,
    ) -> Answer:
        """Fetches the cache of all but the last prompt token and answers; raises what the fetch raises."""
        if params is None:
            with self._computing:
                return Answer(tuple(self._runner.generate(tokens, max_new_tokens, stop_tokens=stop_tokens)), None)
        return self._answer(
            tokens, lambda tables: self._engine.fetch(dict(params), tables), max_new_tokens, stop_tokens,
            timeout_seconds,
        )  # fmt: skip

    def decode_followed(
        self,
        tokens: Sequence[int],
        transfer_id: str,
        address: str,
        max_new_tokens: int,
        stop_tokens: Sequence[int] = (),
        timeout_seconds: float = 60.0,
    ) -> Answer:
        """The same while the prompt is still being prefilled at ``address``, see ``prefill_in_chunks``."""
        if len(tokens) < 2:
            return self.decode(tokens, None, max_new_tokens, stop_tokens)
        return self._answer(
            tokens, lambda tables: self._engine.follow(transfer_id, address, tables), max_new_tokens, stop_tokens,
            timeout_seconds,
        )  # fmt: skip

    def _answer(
        self,
        tokens: Sequence[int],
        begin: Callable[[Tables], Fetch],
        max_new_tokens: int,
        stop_tokens: Sequence[int],
        timeout_seconds: float,
    ) -> Answer:
        num_tokens = len(tokens) - 1
        tables = self._store.allocate(num_tokens)
        try:
            delivered = self._wait(begin(tables), timeout_seconds)
            captured = self._store.memory.read(num_tokens, tables)
        finally:
            self._store.give_back(tables)
        with self._computing:
            session = self._runner.restore(captured)
            made = self._runner.generate(tokens, max_new_tokens, session, stop_tokens)
        return Answer(tuple(made), delivered)

    def _wait(self, fetch: Fetch, timeout_seconds: float) -> Delivered:
        """Returns or raises only when nothing writes into the blocks any more."""
        try:
            return fetch.result(timeout_seconds)
        except KVWeaveError:
            fetch.abort()
            fetch.wait_reusable(timeout_seconds)
            raise

    def blocks_in_use(self, patience_seconds: float = 0.001) -> int:
        """Blocks that are not free: 0 between requests."""
        return self._store.blocks_in_use(patience_seconds)

    def close(self) -> None:
        """Ends the engine."""
        self._engine.close()


def _offer_chunk(transfer: ProgressiveTransfer, num_tokens: int, pinned: PinnedTables) -> None:
    pinned.hold()
    offered = None
    try:
        offered = transfer.offer_chunk(num_tokens, pinned.tables, pinned.let_go)
    finally:
        if offered is None:
            pinned.let_go()


def weights_fingerprint(runner: ModelRunner) -> str:
    """A short hash of the weights, from samples of every tensor: tells a fine-tune from its parent."""
    digest = blake2b(digest_size=8)
    for name, weight in sorted(runner.network.state_dict().items()):
        flat = weight.detach().flatten()
        step = max(1, flat.numel() // _SAMPLED_WEIGHTS)
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        digest.update(flat[::step].contiguous().float().numpy().tobytes())
    return digest.hexdigest()
