"""Which entries of the protocol's tables a run has visited, so that faults which never bite are seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvweave.protocol.states import FETCH, FOLLOW, OFFER, PEER, Table

TABLES: tuple[Table[Any, Any], ...] = (PEER, OFFER, FETCH, FOLLOW)

Visits = Counter[tuple[str, str, str]]
"""How often each (table, state, event) was looked up."""


@contextmanager
def counted_visits() -> Iterator[Visits]:
    """Counts the steps of all tables while the block runs."""
    visits: Visits = Counter()
    step = Table.step

    def counting(table: Table[Any, Any], state: Any, event: Any) -> Any:
        visits[table.name, state.value, event.value] += 1
        return step(table, state, event)

    setattr(Table, "step", counting)  # noqa: B010, mypy knows no assignment to a method
    try:
        yield visits
    finally:
        setattr(Table, "step", step)  # noqa: B010


def unvisited(visits: Visits) -> list[tuple[str, str, str]]:
    """The entries of all tables that were not visited."""
    entries = [(table.name, state.value, event.value) for table in TABLES for state, event in table.transitions]
    return [entry for entry in entries if not visits[entry]]
