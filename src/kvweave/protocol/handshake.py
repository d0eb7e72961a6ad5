"""Who talks to whom: one round trip per peer engine, and what it must bring.

The decode side asks, the prefill side answers with version, description and agent data of every rank. Checked in this
order, and nothing later is touched before: protocol version (the envelope), description, compatibility, agent data::

    decode   want -> HandshakeRequest ....> Reception          prefill
             HandshakeReply <.............. guest registered
             ConnectPeer -> every rank connected and warm -> PeerReady

Whatever goes wrong ends in ``PeerFailed`` within ``handshake_seconds``; a peer that does not fit is told every reason
and is not asked again for a while. A peer named in the configuration is asked again and again. Who says nothing for
several leases is forgotten on the prefill side, and asked to shake hands again where it speaks after all.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from kvweave.core.compatibility import check_compatibility
from kvweave.core.layout import EngineLayout
from kvweave.errors import LocalProtocolError, Mismatch, RemoteProtocolError
from kvweave.protocol.description import decode_layout, encode_layout
from kvweave.protocol.effects import (
    ConnectPeer,
    DecodeEffect,
    DropPeer,
    Greeted,
    PeerFailed,
    PeerLost,
    PeerReady,
    PrefillEffect,
    Send,
)
from kvweave.protocol.messages import (
    EngineRole,
    HandshakeRefused,
    HandshakeReply,
    HandshakeRequest,
    Incompatible,
    Problem,
    RankAgent,
    RefusalReason,
)
from kvweave.protocol.offer import Guest
from kvweave.protocol.states import PEER, PeerEvent, PeerState
from kvweave.protocol.timers import Timers
from kvweave.protocol.timing import Timing

MOST_GUESTS = 4096
MOST_GUESTS_EACH = 1024
MOST_HANDSHAKE_BYTES = 60 << 20
SILENT_LEASES = 4
"""After how many leases without a word a guest is forgotten: it beats several times a lease."""

Effects = tuple[DecodeEffect, ...]
HolderOf = Callable[[Hashable], Hashable]


def itself(connection: Hashable) -> Hashable:
    """Where nothing is known of who is behind a connection: each is its own holder."""
    return connection


class Reception:
    """The prefill side: answers handshakes and remembers who is at the other end of each connection.

    An observer gets the description and no agent data, and is not remembered. Without ``agents`` there are observers
    only, which is how a decode engine describes itself.

    At most ``MOST_GUESTS`` connections are remembered, ``MOST_GUESTS_EACH`` of one holder, each for ``SILENT_LEASES``
    after its last word; the others must shake hands again. ``holder_of`` says who answers for a connection, so that
    nobody drives out the others.
    """

    def __init__(
        self,
        engine_id: str,
        layout: EngineLayout,
        agents: Sequence[bytes],
        lease_seconds: float,
        holder_of: HolderOf = itself,
    ) -> None:
        self._engine_id = engine_id
        self._holder_of = holder_of
        self._description = encode_layout(layout)
        self.nbytes = nbytes = len(self._description) + sum(map(len, agents))
        if nbytes > MOST_HANDSHAKE_BYTES:
            raise LocalProtocolError(
                f"engine {engine_id}: description and agent data have {nbytes} bytes, at most {MOST_HANDSHAKE_BYTES} "
                "fit a handshake; describe layers of one geometry together, or register fewer regions"
            )
        self._agents = tuple(RankAgent(rank, data) for rank, data in enumerate(agents))
        self._lease_seconds = lease_seconds
        self._guests: OrderedDict[Hashable, tuple[Guest, float]] = OrderedDict()
        self._closed = False

    def __len__(self) -> int:
        return len(self._guests)

    def guest(self, now: float, connection: Hashable) -> Guest | None:
        """Who has shaken hands on this connection, and speaks now."""
        found = self._guests.get(connection)
        if found is None:
            return None
        self._guests[connection] = found[0], now
        self._guests.move_to_end(connection)
        return found[0]

    def forget(self, connection: Hashable) -> None:
        """Who was at the other end of a connection has left it."""
        self._guests.pop(connection, None)

    def close(self) -> None:
        """Turns everybody away from now on."""
        self._closed = True

    def get_timer(self) -> float | None:
        """When ``handle_timer`` should be called next."""
        return next((self._forget_at(heard) for _, heard in self._guests.values()), None)

    def handle_timer(self, now: float) -> None:
        """Forgets who was silent for too long."""
        while (moment := self.get_timer()) is not None and moment <= now:
            self._guests.popitem(last=False)

    def _make_room(self, holder: Hashable) -> None:
        """Forgets who was silent longest: of the holder that has too many, then of all."""
        if len(self._guests) > MOST_GUESTS_EACH:
            own = [connection for connection in self._guests if self._holder_of(connection) == holder]
            for connection in own[:-MOST_GUESTS_EACH]:
                del self._guests[connection]
        while len(self._guests) > MOST_GUESTS:
            self._guests.popitem(last=False)

    def _forget_at(self, heard: float) -> float:
        return heard + SILENT_LEASES * self._lease_seconds

    def receive(self, now: float, connection: Hashable, request: HandshakeRequest) -> tuple[PrefillEffect, ...]:
        """The answer to a handshake."""
        if self._closed:
            text = f"engine {self._engine_id} is closing; ask another one"
            return (Send(connection, HandshakeRefused(request.attempt, RefusalReason.CLOSING, text)),)
        if request.role is EngineRole.OBSERVER:
            reply = HandshakeReply(request.attempt, self._engine_id, self._lease_seconds, self._description, ())
            return (Send(connection, reply),)
        if request.role is not EngineRole.DECODE or not self._agents:
            role, wanted = request.role.value, "decode engines and observers" if self._agents else "observers"
            text = f"engine {self._engine_id} serves {wanted} here, not {role} engines"
            return (Send(connection, HandshakeRefused(request.attempt, RefusalReason.ROLE, text)),)
        self._guests[connection] = Guest(request.engine_id, request.num_ranks), now
        self._guests.move_to_end(connection)
        self._make_room(self._holder_of(connection))
        ranks = None if request.ranks is None else set(request.ranks)
        agents = tuple(agent for agent in self._agents if ranks is None or agent.rank in ranks)
        reply = HandshakeReply(request.attempt, self._engine_id, self._lease_seconds, self._description, agents)
        return (Greeted(request.engine_id), Send(connection, reply))


@dataclass(slots=True)
class _Peer:
    attempt: int
    end: float
    resend_seconds: float
    state: PeerState = PEER.initial
    reply: HandshakeReply | None = None
    cold_ranks: set[int] = field(default_factory=set)
    misfit: PeerFailed | None = None


class PeerBook:
    """The decode side: every prefill engine that it knows, by address."""

    def __init__(self, engine_id: str, layout: EngineLayout, timing: Timing) -> None:
        self._engine_id = engine_id
        self._layout = layout
        self._timing = timing
        self._named: set[str] = set()
        self._peers: dict[str, _Peer] = {}
        self._timers: Timers[str] = Timers()
        self._attempts = itertools.count(1)

    def __len__(self) -> int:
        return len(self._peers)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of all peers of which there is a record."""
        return tuple(self._peers)

    @property
    def opening(self) -> int:
        """How many handshakes are under way."""
        return sum(peer.state in (PeerState.HANDSHAKING, PeerState.CONNECTING) for peer in self._peers.values())

    def state(self, address: str) -> PeerState:
        """Where a peer stands; unknown when there is no record of it."""
        peer = self._peers.get(address)
        return PeerState.UNKNOWN if peer is None else peer.state

    def name(self, now: float, address: str) -> Effects:
        """Wants a peer of the configuration, now and after every loss."""
        self._named.add(address)
        return self.want(now, address)

    def want(self, now: float, address: str) -> Effects:
        """Begins a handshake unless one is under way or done; repeats the reasons of a fresh misfit."""
        known = self._peers.get(address)
        if known is not None:
            known.state = PEER.step(known.state, PeerEvent.WANT)
            return () if known.misfit is None else (known.misfit,)
        end = now + self._timing.handshake_seconds
        peer = self._peers[address] = _Peer(next(self._attempts), end, self._timing.resend_seconds)
        peer.state = PEER.step(peer.state, PeerEvent.WANT)
        return self._ask(now, address, peer)

    def _ask(self, now: float, address: str, peer: _Peer) -> Effects:
        self._timers.set(address, min(now + peer.resend_seconds, peer.end))
        ranks = len(self._layout.ranks)
        return (Send(address, HandshakeRequest(peer.attempt, self._engine_id, EngineRole.DECODE, ranks)),)

    def receive(self, now: float, address: str, message: HandshakeReply | HandshakeRefused) -> Effects:
        """What an answer causes; one that belongs to no open handshake changes nothing."""
        peer = self._peers.get(address)
        if isinstance(message, HandshakeRefused) and message.reason is RefusalReason.NOT_HANDSHAKEN:
            return self.lose(now, address, message.text) if peer and peer.state is PeerState.READY else ()
        if peer is None or peer.attempt != message.attempt:
            return ()
        if peer.state is not PeerState.HANDSHAKING:
            peer.state = PEER.step(peer.state, PeerEvent.REPLY)
            return ()
        if isinstance(message, HandshakeRefused):
            return self.lose(now, address, f"handshake refused: {message.text} (reason: {message.reason.value})")
        try:
            layout = decode_layout(message.description)
            problems = check_compatibility(layout, self._layout)
            if problems:
                return self.misfit(now, address, problems)
            agents = _agents(message, len(layout.ranks))
        except RemoteProtocolError as error:
            return self.lose(now, address, str(error))
        peer.state = PEER.step(peer.state, PeerEvent.REPLY)
        self._timers.set(address, peer.end)
        peer.reply = message
        peer.cold_ranks = set(range(len(self._layout.ranks)))
        return (ConnectPeer(address, peer.attempt, layout, agents),)

    def connected(self, address: str, attempt: int, rank: int) -> Effects:
        """One of our ranks is connected to all its sources, and warm."""
        peer = self._peers.get(address)
        if peer is None or peer.attempt != attempt or peer.state is not PeerState.CONNECTING or peer.reply is None:
            return ()
        peer.cold_ranks.discard(rank)
        if peer.cold_ranks:
            return ()
        peer.state = PEER.step(peer.state, PeerEvent.WARM)
        self._timers.cancel(address)
        return (PeerReady(address, peer.reply.engine_id, peer.reply.lease_seconds),)

    def not_connected(
        self, now: float, address: str, attempt: int, text: str, problems: Sequence[Mismatch] = ()
    ) -> Effects:
        """One of our ranks cannot connect or cannot plan."""
        peer = self._peers.get(address)
        if peer is None or peer.attempt != attempt:
            return ()
        return self.misfit(now, address, problems) if problems else self.lose(now, address, text)

    def misfit(self, now: float, address: str, problems: Sequence[Mismatch]) -> Effects:
        """The peer does not fit; it is told so, and stays incompatible for ``retry_seconds``."""
        peer = self._peers.get(address)
        if peer is None or peer.state not in (PeerState.HANDSHAKING, PeerState.CONNECTING):
            return self.lose(now, address, "; ".join(map(str, problems)))
        peer.state = PEER.step(peer.state, PeerEvent.MISFIT)
        failed = PeerFailed(address, "\n".join(map(str, problems)), tuple(problems))
        peer.misfit = failed
        self._timers.set(address, now + self._timing.retry_seconds)
        return (Send(address, Incompatible(tuple(map(_problem, problems[:100])))), DropPeer(address), failed)

    def lose(self, now: float, address: str, text: str) -> Effects:
        """The peer is gone; its record is dropped, and with it everything that is known of it."""
        peer = self._peers.get(address)
        if peer is None:
            return ()
        was, peer.state = peer.state, PEER.step(peer.state, PeerEvent.LOSE)
        if was is PeerState.INCOMPATIBLE:
            return ()
        self._drop(now, address)
        report = PeerLost(address, text) if was is PeerState.READY else PeerFailed(address, text)
        return (DropPeer(address), report)

    def get_timer(self) -> float | None:
        """When ``handle_timer`` should be called next."""
        return self._timers.next()

    def handle_timer(self, now: float) -> Effects:
        """Repeats what has no answer, ends handshakes that took too long, forgets misfits, asks named peers again."""
        effects: Effects = ()
        for address in self._timers.due(now):
            peer = self._peers.get(address)
            if peer is None:
                effects += self.want(now, address)
            elif peer.state is PeerState.INCOMPATIBLE:
                peer.state = PEER.step(peer.state, PeerEvent.FORGET)
                self._drop(now, address)
            elif peer.state is PeerState.HANDSHAKING and now < peer.end:
                peer.state = PEER.step(peer.state, PeerEvent.REPEAT)
                peer.resend_seconds *= 2
                effects += self._ask(now, address, peer)
            else:
                seconds = self._timing.handshake_seconds
                effects += self.lose(now, address, f"{address}: {peer.state.value} for {seconds:g} s; is it running?")
        return effects

    def _drop(self, now: float, address: str) -> None:
        del self._peers[address]
        self._timers.cancel(address)
        if address in self._named:
            self._timers.set(address, now + self._timing.retry_seconds)


def _agents(reply: HandshakeReply, num_ranks: int) -> tuple[bytes, ...]:
    if [agent.rank for agent in reply.agents] != list(range(num_ranks)):
        raise RemoteProtocolError(
            f"handshake: agent data of {len(reply.agents)} ranks for the {num_ranks} ranks of {reply.engine_id}; "
            "one per rank, in their order, is expected"
        )
    return tuple(agent.data for agent in reply.agents)


def _problem(mismatch: Mismatch) -> Problem:
    return Problem(mismatch.field[:2000], mismatch.source[:2000], mismatch.target[:2000], mismatch.remedy[:2000])
