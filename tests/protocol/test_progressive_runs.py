"""Progressive transfers between both real sides under a virtual clock, from a seed: what may go wrong does.

Messages are lost, repeated and late; requests are preempted, and their blocks are another's in the same moment; reads
fail and end late; either side aborts; the prefill engine crashes or stops in the midst. After every run: one report
for each request, every delivered token is the request's own, every offer released once, nothing left on either side.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial

import pytest

from kvweave.protocol.codec import decode, encode
from kvweave.protocol.effects import (
    CancelReads,
    ConnectPeer,
    Delivered,
    Failed,
    FailureReason,
    PostReads,
    Release,
    RetryReads,
    Reusable,
    Send,
)
from kvweave.protocol.follow_entry import Pursuit, Target
from kvweave.protocol.reference import OfferReference
from kvweave.protocol.sides import DecodeSide, PrefillSide
from kvweave.protocol.timing import Timing
from tests.protocol.examples import ADDRESS, ENGINE, small_layout

TOKENS_PER_BLOCK = 4
TIMING = Timing(
    handshake_seconds=2.0, answer_seconds=1.0, read_seconds=5.0, retry_seconds=1.0, resend_seconds=0.2,
    silence_seconds=1.5, progress_seconds=6.0,
)  # fmt: skip
SECONDS = 200.0
ID = "a transfer id that nobody guesses, number {}"


@dataclass
class Request:
    """One prompt: its source blocks as they are now, and what became of it on the other side."""

    number: int
    num_blocks: int
    blocks: tuple[int, ...] = ()
    computed: int = 0
    reports: list[Delivered | Failed] = field(default_factory=list)
    reusable: int = 0
    over: bool = False


class Run:
    """Both sides, the network and the memory between them. A block's content says whose token block it is."""

    def __init__(self, seed: int, requests: int = 6) -> None:
        self.dice = random.Random(seed)
        self.now = 0.0
        self.counts: Counter[str] = Counter()
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._fresh = itertools.count()
        self.loss = self.dice.choice((0.0, 0.02, 0.1))
        self.source: dict[int, tuple[int, int] | None] = {}
        self.target: dict[tuple[int, int], tuple[int, int] | None] = {}
        self.pins: Counter[tuple[str, int]] = Counter()
        self.alive = True
        layout = small_layout()
        self.prefill = PrefillSide(ENGINE, layout, (b"a", b"b"), self.dice.choice((0.5, 2.0)))
        self.decode = DecodeSide("decode-1", layout, TIMING)
        self.reading: dict[int, set[int]] = {}
        self.cancelled: set[int] = set()
        self.generations = itertools.count(1)
        self.requests = [Request(number, self.dice.randint(2, 6)) for number in range(requests)]
        for request in self.requests:
            start = self.dice.uniform(0.0, 5.0)
            self.at(start + self.dice.uniform(-0.5, 0.5), partial(self._follow, request))
            self.at(start, partial(self._begin, request))
        if self.dice.random() < 0.15:
            self.at(self.dice.uniform(0.5, 8.0), self._crash)

    def run(self) -> None:
        while self._events and self.now < SECONDS and not self._over:
            moment, _, act = heapq.heappop(self._events)
            self.now = max(self.now, moment)
            act()
            self._look()

    @property
    def _over(self) -> bool:
        """Whether everybody has a report and nothing is left that could still go wrong."""
        return (
            all(request.reports and (request.over or not self.alive) for request in self.requests)
            and not self.decode.fetches
            and self.decode.follows.over
            and not (self.alive and (self.prefill.transfers or self.prefill.offers))
        )

    def at(self, moment: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(moment, self.now), next(self._order), act))

    def soon(self, longest: float, act: Callable[[], None]) -> None:
        self.at(self.now + self.dice.uniform(0.001, longest), act)

    # The prefill engine

    def _begin(self, request: Request) -> None:
        if not self.alive:
            return
        self.prefill.begin_transfer(self.now, ID.format(request.number))
        request.blocks = self._blocks(request)
        self.soon(0.6, partial(self._compute, request))

    def _blocks(self, request: Request) -> tuple[int, ...]:
        return tuple(next(self._fresh) for _ in range(request.num_blocks))

    def _compute(self, request: Request) -> None:
        """One chunk more, or the blocks are lost, or the request is given up."""
        if not self.alive or request.over:
            return
        luck = self.dice.random()
        if luck < 0.1:
            self.counts["preempted"] += 1
            self._prefill(self.prefill.retract_parts(self.now, ID.format(request.number)))
            self._overwrite(request.blocks)
            request.blocks, request.computed = self._blocks(request), 0
        elif luck < 0.14:
            request.over = True
            self.counts["given up"] += 1
            self._prefill(self.prefill.abandon_transfer(self.now, ID.format(request.number)))
            return
        else:
            self.source[request.blocks[request.computed]] = (request.number, request.computed)
            request.computed += 1
            self._offer(request)
        self.soon(0.6, partial(self._compute, request))

    def _offer(self, request: Request) -> None:
        final = request.computed == request.num_blocks
        request.over = final
        reference = OfferReference(
            ENGINE, "127.0.0.1", 5600, f"request {request.number}", next(self.generations),
            request.computed * TOKENS_PER_BLOCK, {"full": request.blocks[: request.computed]},
        )  # fmt: skip
        self.pins[reference.offer.request_id, reference.generation] += 1
        self._prefill(self.prefill.offer_part(self.now, ID.format(request.number), reference, final))

    def _overwrite(self, blocks: tuple[int, ...]) -> None:
        for block in blocks:
            self.source[block] = None

    def _crash(self) -> None:
        self.counts["crashed"] += 1
        self.alive = False
        for block in list(self.source):
            self.source[block] = None

    def _prefill(self, effects: tuple[object, ...]) -> None:
        for effect in effects:
            if isinstance(effect, Send) and self.alive:
                self._post_message(self._answer, effect)
            if isinstance(effect, Release):
                key = effect.offer.request_id, effect.offer.generation
                assert self.pins[key] == 1, "released twice"
                del self.pins[key]

    # The decode engine

    def _follow(self, request: Request) -> None:
        self._decode(self.decode.follow(self.now, request.number, Pursuit(ADDRESS, ID.format(request.number))))
        tables = {"full": tuple(request.number * 100 + place for place in range(request.num_blocks))}
        self.soon(self.dice.choice((0.002, 2.0)), partial(self._give_room, request, Target(tables)))
        if self.dice.random() < 0.2:
            self.soon(4.0, lambda: self._decode(self.decode.abort(self.now, request.number)))

    def _give_room(self, request: Request, target: Target) -> None:
        self._decode(self.decode.begin_followed(self.now, request.number, target))

    def _decode(self, effects: tuple[object, ...]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self._post_message(self._hear, effect)
                case ConnectPeer(address, attempt):
                    for rank in range(2):
                        self.soon(0.1, partial(self._connected, address, attempt, rank))
                case PostReads():
                    self._read(effect)
                case RetryReads(fetch, rank):
                    self.soon(0.1, partial(self._ended, fetch, rank))
                case CancelReads(fetch):
                    self.cancelled.add(fetch)
                case Delivered() | Failed():
                    self._report(effect)
                case Reusable(fetch):
                    self.requests[fetch].reusable += 1

    def _connected(self, address: str, attempt: int, rank: int) -> None:
        self._decode(self.decode.connected(self.now, address, attempt, rank))

    def _answer(self, data: bytes) -> None:
        self._decode(self.decode.receive(self.now, ADDRESS, decode(data)))

    def _hear(self, data: bytes) -> None:
        if self.alive:
            self._prefill(self.prefill.receive(self.now, "decode", decode(data)))

    def _post_message(self, hear: Callable[[bytes], None], effect: Send) -> None:
        data = encode(effect.message)
        for _ in range(self.dice.choice((1, 1, 1, 2))):
            if self.dice.random() >= self.loss:
                self.soon(1.0 if self.dice.random() < 0.05 else 0.02, partial(hear, data))

    def _read(self, post: PostReads) -> None:
        """Each rank copies one block after the other, as they are in that moment."""
        assert post.portion is not None
        first, stop = (tokens // TOKENS_PER_BLOCK for tokens in (post.portion.kept_start, post.num_tokens))
        self.reading[post.fetch] = {0, 1}
        for rank in range(2):
            delay = 0.0
            for place in range(first, stop):
                delay += self.dice.uniform(0.0, 0.3)
                pair = post.source_tables["full"][place], (rank, post.target_tables["full"][place])
                self.at(self.now + delay, partial(self._copy, post.fetch, rank, *pair))
            self.at(self.now + delay + 0.01, partial(self._ended, post.fetch, rank))

    def _copy(self, fetch: int, rank: int, block: int, into: tuple[int, int]) -> None:
        if rank in self.reading.get(fetch, ()):
            self.target[into] = self.source.get(block)

    def _ended(self, fetch: int, rank: int) -> None:
        if rank not in self.reading.get(fetch, ()):
            return
        gone = not self.alive
        if gone or self.dice.random() < 0.03:
            self.counts["reads failed"] += 1
            reason = FailureReason.PEER_LOST if gone else FailureReason.READ_FAILED
            self._decode(self.decode.read_failed(self.now, fetch, rank, reason, "it failed"))
        self.reading[fetch].discard(rank)
        self._decode(self.decode.reads_ended(self.now, fetch, rank, self.now))

    def _report(self, effect: Delivered | Failed) -> None:
        request = self.requests[effect.fetch]
        request.reports.append(effect)
        self.counts["delivered" if isinstance(effect, Delivered) else f"failed: {effect.reason.value}"] += 1
        if isinstance(effect, Delivered):
            for rank, place in itertools.product(range(2), range(request.num_blocks)):
                got = self.target[rank, request.number * 100 + place]
                assert got == (request.number, place), f"request {request.number}: block {place} holds {got}"

    # Time

    def _look(self) -> None:
        """What is due now; timers are looked at as they are set."""
        self._decode(self.decode.handle_timer(self.now))
        if self.alive:
            self._prefill(self.prefill.handle_timer(self.now))
        moments = [self.decode.get_timer(), self.prefill.get_timer() if self.alive else None]
        due = min((moment for moment in moments if moment is not None), default=None)
        if due is not None and (not self._events or due < self._events[0][0]):
            self.at(due, lambda: None)


@cache
def run(seed: int) -> Run:
    made = Run(seed)
    made.run()
    return made


@pytest.mark.parametrize("seeds", [range(start, start + 10) for start in range(0, 40, 10)], ids=str)
def test_whatever_happens_each_request_ends_once_with_its_own_bytes_and_nothing_is_left(seeds: range) -> None:
    for seed in seeds:
        made = run(seed)
        reports = [len(request.reports) for request in made.requests]
        assert reports == [1] * len(reports), f"seed {seed}: {reports}"
        failed = [request for request in made.requests if isinstance(request.reports[0], Failed)]
        assert [request.reusable for request in failed] == [1] * len(failed), f"seed {seed}"
        assert (len(made.decode.follows), len(made.decode.fetches)) == (0, 0), f"seed {seed}"
        assert made.decode.follows.over, f"seed {seed}"
        if made.alive:
            assert (dict(made.pins), len(made.prefill.transfers), len(made.prefill.offers)) == ({}, 0, 0), (
                f"seed {seed}"
            )


def test_everything_that_shall_go_wrong_does() -> None:
    counts = sum((run(seed).counts for seed in range(40)), Counter[str]())
    wanted = {"delivered", "preempted", "given up", "crashed", "reads failed", "failed: aborted", "failed: withdrawn"}
    assert wanted <= set(counts)
    assert counts["delivered"] > 40
