"""What callers ask of a decode engine's polling thread, as frozen values; and the peer that one of them is told of."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

from kvweave.core.layout import EngineLayout
from kvweave.protocol.follow_entry import Pursuit, Target
from kvweave.protocol.order import Order
from kvweave.protocol.reference import OfferReference
from kvweave.runtime.drains import Drain
from kvweave.runtime.handle import Fetch


@dataclass(frozen=True, slots=True)
class Peer:
    """A prefill engine that is ready: where it is, its id, and how it is laid out."""

    address: str
    engine_id: str
    layout: EngineLayout


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep the offer of a queued request alive."""

    fetch: Fetch
    reference: OfferReference


@dataclass(frozen=True, slots=True)
class Begin:
    """Fetch an offer, held before or not."""

    fetch: Fetch
    order: Order


@dataclass(frozen=True, slots=True)
class Abort:
    """End a fetch from our side."""

    number: int


@dataclass(frozen=True, slots=True)
class Connect:
    """Handshake with a peer and keep it connected."""

    address: str
    future: Future[Peer]


@dataclass(frozen=True, slots=True)
class BeginFollow:
    """Follow a transfer that is offered while it is prefilled."""

    fetch: Fetch
    pursuit: Pursuit


@dataclass(frozen=True, slots=True)
class BeginFollowed:
    """Read what a followed transfer offers into blocks of ours."""

    fetch: Fetch
    target: Target


DecodeCommand = Hold | Begin | BeginFollow | BeginFollowed | Abort | Connect | Drain
