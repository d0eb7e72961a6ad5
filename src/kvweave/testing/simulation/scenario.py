"""What happens in one run, as frozen values: engines, requests, faults with their moments, and the weather.

Moments are virtual seconds from the start. Engines are named by their place, ``prefill 0``, ``decode 1``; a place is
held by one process after another where engines crash, close or are replaced.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvweave.protocol.timing import Timing

TOKENS_PER_BLOCK = 4


class Role(StrEnum):
    """Which kind of engine."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Place:
    """One engine's place in the deployment."""

    role: Role
    number: int

    def __str__(self) -> str:
        return f"{self.role.value} {self.number}"


LARGE_HEAD = 2**17
"""Of one head, keys and values of a block of four tokens are then 2 MiB."""


@dataclass(frozen=True, slots=True)
class Shape:
    """An engine of ``tp`` ranks over ``heads`` key-value heads, with a pool of ``blocks`` blocks.

    With more ranks than heads, ranks are replicas of each other. ``head_size`` tells models apart that do not fit; with
    ``LARGE_HEAD`` requests of two blocks are read in stripes. ``mixed``: there are a layer with a window and one with a
    state as well.
    """

    tp: int
    blocks: int
    heads: int = 2
    head_size: int = 8
    mixed: bool = False


class Tamper(StrEnum):
    """What a client does to a reference before it passes it on."""

    UNKNOWN_REQUEST = "unknown_request"
    OTHER_GENERATION = "other_generation"
    OTHER_BLOCKS = "other_blocks"
    OTHER_ENGINE = "other_engine"
    OTHER_LENGTH = "other_length"


class Mistake(StrEnum):
    """What a client tells a decode engine wrongly of the prompt that it shall follow."""

    OTHER_PROMPT = "other_prompt"
    OTHER_LENGTH = "other_length"


@dataclass(frozen=True, slots=True)
class Progress:
    """How a request is prefilled in steps, each of which is offered to whoever follows ``transfer_id``.

    ``steps`` are the tokens that are there after each of them, ``step_seconds`` how long one lasts. ``begin_after`` is
    when the prefill engine gets the prompt, None where it never does; ``follow_after`` when each decode engine of the
    plan does, both counted from the request; engines without a number do not follow. Of all acts of the prefill engine
    for the request, those of ``preempted`` are the loss of its blocks, and act ``given_up`` is the end of it.
    ``start_token``: so many tokens the decode engine has already. ``handed_over``: the final offer's reference is
    passed on as well, as if nobody followed. ``told``: decode engines know the prompt's name and length, rightly but
    for a ``mistake``.
    """

    transfer_id: str
    steps: tuple[int, ...]
    step_seconds: float
    begin_after: float | None = 0.0
    follow_after: tuple[float, ...] = (0.0,)
    preempted: tuple[int, ...] = ()
    given_up: int | None = None
    start_token: int = 0
    handed_over: bool = False
    told: bool = False
    mistake: Mistake | None = None

    @property
    def seconds(self) -> float:
        """How long everything lasts that is planned of it, from the request on."""
        acts = len(self.steps) * (1 + len(self.preempted)) + len(self.preempted)
        return acts * self.step_seconds + (self.begin_after or 0.0) + max(self.follow_after, default=0.0)


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """One request: where and when it is prefilled, who gets its reference, and what its clients do meanwhile.

    ``decode`` are the engines that get the reference, one after the other; ``resent`` the delays after which the first
    of them gets it once more. ``queue_seconds`` is None where the fetch begins at once, without being held before.
    ``abort_after`` counts from the reference's arrival, ``withdraw_after`` from the offer. With ``progress`` it is
    offered while it is prefilled: then ``decode`` are the engines that follow it, the first of them again after
    ``resent``.
    """

    number: int
    at: float
    prefill: int
    decode: tuple[int, ...]
    request_id: str
    blocks: int
    prefill_seconds: float
    use_seconds: float
    queue_seconds: float | None = None
    lease_seconds: float | None = None
    abort_after: float | None = None
    withdraw_after: float | None = None
    resent: tuple[float, ...] = ()
    tamper: Tamper | None = None
    progress: Progress | None = None

    @property
    def num_tokens(self) -> int:
        """How long its prompt is."""
        return self.progress.steps[-1] if self.progress else self.blocks * TOKENS_PER_BLOCK


@dataclass(frozen=True, slots=True)
class Stop:
    """A process stands still for a while and goes on; reads of its memory go on meanwhile."""

    at: float
    place: Place
    seconds: float


@dataclass(frozen=True, slots=True)
class Crash:
    """A process ends without a word and is started again after ``seconds``, or never when that is None.

    ``same_address`` and ``same_id``: its successor listens where it did, and calls itself as it did. ``shape`` is the
    successor's, where it differs.
    """

    at: float
    place: Place
    seconds: float | None
    same_address: bool = True
    same_id: bool = False
    shape: Shape | None = None


@dataclass(frozen=True, slots=True)
class Close:
    """An engine is closed in order, and started again after ``seconds``."""

    at: float
    place: Place
    seconds: float


@dataclass(frozen=True, slots=True)
class Drain:
    """An engine takes nothing new; once drained it is closed, and started again after ``seconds``."""

    at: float
    place: Place
    seconds: float


@dataclass(frozen=True, slots=True)
class Partition:
    """No message passes between two engines for a while, in one direction or in both."""

    at: float
    seconds: float
    prefill: int
    decode: int
    to_prefill: bool = True
    to_decode: bool = True


@dataclass(frozen=True, slots=True)
class FailingReads:
    """Reads from one prefill rank (of every one when it is None) fail for a while, half way through."""

    at: float
    seconds: float
    prefill: int
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class SlowReads:
    """Reads from one prefill engine that are posted meanwhile last longer by ``factor``."""

    at: float
    seconds: float
    prefill: int
    factor: float


@dataclass(frozen=True, slots=True)
class Slow:
    """Messages to and from an engine take ``delay`` seconds longer for a while."""

    at: float
    seconds: float
    place: Place
    delay: float


Fault = Stop | Crash | Close | Drain | Partition | FailingReads | SlowReads | Slow


@dataclass(frozen=True, slots=True)
class Weather:
    """How messages and reads fare, fault or not. Shares are probabilities; delays are drawn up to their bound."""

    lost: float = 0.0
    repeated: float = 0.0
    late: float = 0.0
    quick_seconds: float = 0.01
    late_seconds: float = 1.0
    read_seconds: float = 0.2
    long_reads: float = 0.0
    long_read_seconds: float = 3.0
    clock_drift: float = 0.0


CALM = Weather()
SWIFT = Timing(
    handshake_seconds=2.0, answer_seconds=1.0, read_seconds=5.0, retry_seconds=1.0, resend_seconds=0.2,
    silence_seconds=1.5,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that one run depends on. ``seed`` gives the dice of network and reads."""

    seed: int
    prefill: tuple[Shape, ...]
    decode: tuple[Shape, ...]
    requests: tuple[RequestPlan, ...]
    faults: tuple[Fault, ...] = ()
    weather: Weather = CALM
    lease_seconds: float = 2.0
    timing: Timing = SWIFT
    named_peers: bool = False

    @property
    def calm(self) -> bool:
        """Whether nothing goes wrong."""
        return not self.faults and self.weather == CALM

    @property
    def calm_at(self) -> float:
        """From when on nothing new happens and no fault lasts."""
        last = [
            plan.at + plan.prefill_seconds + sum(plan.resent) + (plan.queue_seconds or 0.0)
            + (plan.progress.seconds if plan.progress else 0.0)
            for plan in self.requests
        ]  # fmt: skip
        return max([*last, *(fault.at + (fault.seconds or 0.0) for fault in self.faults)], default=0.0) + 0.5
