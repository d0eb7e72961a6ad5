"""Who talks to whom: one round trip per peer engine, and what it must bring.

The decode side asks, the prefill side answers with version, description and agent data of every rank. Checked in this
order, and nothing later is touched before: protocol version (the envelope), description, compatibility, agent data::

    decode   want -> HandshakeRequest ....> Reception          prefill
             HandshakeReply <.............. guest registered
             ConnectPeer -> every rank connected and warm -> PeerReady

Whatever goes wrong ends in ``PeerFailed`` within ``handshake_seconds``; a peer that does not fit is told every reason
and is not asked again for a while. A peer named in the configuration is asked again and again.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Hashable, Sequence
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
MOST_HANDSHAKE_BYTES = 60 << 20

Effects = tuple[DecodeEffect, ...]


class Reception:
    """The prefill side: answers handshakes and remembers who is at the other end of each connection.

    An observer gets the description and no agent data, and is not remembered. Without ``agents`` there are observers
    only, which is how a decode engine describes itself.

    At most ``MOST_GUESTS`` connections are remembered; the one that was silent longest must shake hands again.
    """

    def __init__(self, engine_id: str, layout: EngineLayout, agents: Sequence[bytes], lease_seconds: float) -> None:
        self._engine_id = engine_id
        self._description = encode_layout(layout)
        self.nbytes = nbytes = len(self._description) + sum(map(len, agents))
        if nbytes > MOST_HANDSHAKE_BYTES:
            raise LocalProtocolError(
                f"engine {engine_id}: description and agent data have {nbytes} bytes, at most {MOST_HANDSHAKE_BYTES} "
                "fit a handshake; describe layers of one geometry together, or register fewer regions"
            )
        self._agents = tuple(RankAgent(rank, data) for rank, data in enumerate(agents))
        self._lease_seconds = lease_seconds
        self._guests: OrderedDict[Hashable, Guest] = OrderedDict()

    def guest(self, connection: Hashable) -> Guest | None:
        """Who has shaken hands on this connection."""
        guest = self._guests.get(connection)
        if guest is not None:
            self._guests.move_to_end(connection)
        return guest

    def receive(self, connection: Hashable, request: HandshakeRequest) -> tuple[PrefillEffect, ...]:
        """The answer to a handshake."""
        if request.role is EngineRole.OBSERVER:
            reply = HandshakeReply(request.attempt, self._engine_id, self._lease_seconds, self._description, ())
            return (Send(connection, reply),)
        if request.role is not EngineRole.DECODE or not self._agents:
            role, wanted = request.role.value, "decode engines and observers" if self._agents else "observers"
            text = f"engine {self._engine_id} serves {wanted} here, not {role} engines"
            return (Send(connection, HandshakeRefused(request.attempt, RefusalReason.ROLE, text)),)
        self._guests[connection] = Guest(request.engine_id, request.num_ranks)
        self._guests.move_to_end(connection)
        while len(self._guests) > MOST_GUESTS:
            self._guests.popitem(last=False)
        ranks = None if request.ranks is None else set(request.ranks)
        agents = tuple(agent for agent in self._agents if ranks is None or agent.rank in ranks)
        reply = HandshakeReply(request.attempt, self._engine_id, self._lease_seconds, self._description, agents)
        return (Greeted(request.engine_id), Send(connection, reply))


@dataclass(slots=True)
class _Peer:
    attempt: int
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
        if known is not None and known.misfit is not None:
            return (known.misfit,)
        if known is not None:
            known.state = PEER.step(known.state, PeerEvent.WANT)
            return ()
        peer = self._peers[address] = _Peer(next(self._attempts))
        peer.state = PEER.step(peer.state, PeerEvent.WANT)
        self._timers.set(address, now + self._timing.handshake_seconds)
        ranks = len(self._layout.ranks)
        return (Send(address, HandshakeRequest(peer.attempt, self._engine_id, EngineRole.DECODE, ranks)),)

    def receive(self, now: float, address: str, message: HandshakeReply | HandshakeRefused) -> Effects:
        """What an answer causes; one that belongs to no open handshake changes nothing."""
        peer = self._peers.get(address)
        if peer is None or peer.attempt != message.attempt or peer.state is not PeerState.HANDSHAKING:
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
        if peer is None or peer.state is PeerState.INCOMPATIBLE:
            return ()
        was, peer.state = peer.state, PEER.step(peer.state, PeerEvent.LOSE)
        self._drop(now, address)
        report = PeerLost(address, text) if was is PeerState.READY else PeerFailed(address, text)
        return (DropPeer(address), report)

    def get_timer(self) -> float | None:
        """When ``handle_timer`` should be called next."""
        return self._timers.next()

    def handle_timer(self, now: float) -> Effects:
        """Ends handshakes that took too long, forgets misfits, asks named peers again."""
        effects: Effects = ()
        for address in self._timers.due(now):
            peer = self._peers.get(address)
            if peer is None:
                effects += self.want(now, address)
            elif peer.state is PeerState.INCOMPATIBLE:
                self._drop(now, address)
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
