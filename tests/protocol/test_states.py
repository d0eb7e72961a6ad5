"""Every pair of state and event, in all tables: it leads where the table says, or is somebody's mistake."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

from kvweave.errors import LocalProtocolError, RemoteProtocolError
from kvweave.protocol.states import (
    FETCH,
    FOLLOW,
    OFFER,
    PEER,
    FetchEvent,
    FetchState,
    FollowEvent,
    FollowState,
    OfferEvent,
    OfferState,
    PeerEvent,
    PeerState,
)

DOCUMENT = Path(__file__).parents[2] / "docs" / "protocol.md"
LIVES = {
    "peer": (PEER, PeerState, PeerEvent),
    "offer": (OFFER, OfferState, OfferEvent),
    "fetch": (FETCH, FetchState, FetchEvent),
    "follow": (FOLLOW, FollowState, FollowEvent),
}
PAIRS = [
    (name, state, event) for name, (_, states, events) in LIVES.items() for state, event in product(states, events)
]


@pytest.mark.parametrize(("name", "state", "event"), PAIRS, ids=str)
def test_every_pair_is_an_entry_or_the_fault_of_one_side(name: str, state: object, event: object) -> None:
    table = LIVES[name][0]
    if table.allows(state, event):
        assert table.step(state, event) is table.transitions[state, event]
        return
    fault = RemoteProtocolError if event in table.remote else LocalProtocolError
    with pytest.raises(fault, match=f"{name}: {event} cannot happen while {state}"):
        table.step(state, event)


@pytest.mark.parametrize("name", LIVES)
def test_every_state_can_be_reached(name: str) -> None:
    table, states, _ = LIVES[name]
    reached = {table.initial}
    for _ in states:
        reached |= {following for (state, _), following in table.transitions.items() if state in reached}
    assert reached == set(states)


def test_terminal_states_are_the_ends_of_the_lives() -> None:
    ends = {
        name: {state.value for state in states if table.terminal(state)} for name, (table, states, _) in LIVES.items()
    }
    reports = {"delivered", "failed"}
    offers = {"released", "expired", "withdrawn"}
    assert ends == {"peer": {"lost"}, "offer": offers, "fetch": reports, "follow": reports}


def test_pinned_offers_end_by_their_lease_whatever_happened() -> None:
    for state in (OfferState.OFFERED, OfferState.CLAIMED, OfferState.REVOKED):
        assert OFFER.terminal(OFFER.step(state, OfferEvent.LEASE_END))


def test_every_living_fetch_can_be_given_up() -> None:
    for state in FetchState:
        assert FETCH.allows(state, FetchEvent.GIVE_UP) is not FETCH.terminal(state)


@pytest.mark.parametrize("name", LIVES)
def test_document_shows_the_diagram_of_the_table(name: str) -> None:
    diagrams = re.findall(r"```mermaid\n(.*?)\n```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert LIVES[name][0].diagram() in diagrams
