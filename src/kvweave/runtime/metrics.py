"""What an engine has done, as plain numbers.

The polling thread counts; anybody may take a snapshot. An observer gets every count as it happens, which is where an
exporter hooks in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

Observer = Callable[[str, str, float], None]
"""Called on the polling thread with name, label and amount; must be quick."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """Totals since the engine started, by (name, label).

    Prefill: ``offers``, ``offered_parts``, ``released`` (reason), ``handshakes``, ``refused`` (reason),
    ``turned_away`` (reason), ``dropped_messages``, ``found_incompatible``. Decode: ``fetches``, ``delivered``,
    ``failed`` (reason), ``bytes``, ``rows``, ``repeated_claims``, ``retried_reads``, ``handshakes``,
    ``handshake_failures``, ``peers_lost``. Both:
    ``seconds`` (stage), ``checked_pieces``, ``malformed_messages``, ``unsent_messages``.
    """

    totals: Mapping[tuple[str, str], float]

    def total(self, name: str, label: str | None = None) -> float:
        """One number; without a label over all labels."""
        return sum(amount for (held, of), amount in self.totals.items() if held == name and label in (None, of))

    def by_label(self, name: str) -> dict[str, float]:
        """All labels of one name."""
        return {label: amount for (held, label), amount in self.totals.items() if held == name}


class Recorder:
    """Counts on the polling thread."""

    def __init__(self, observer: Observer | None = None) -> None:
        self._totals: Counter[tuple[str, str]] = Counter()
        self._observer = observer

    def add(self, name: str, label: str = "", amount: float = 1) -> None:
        """Adds to one total."""
        self._totals[name, label] += amount  # type: ignore[assignment]
        if self._observer is not None:
            self._observer(name, label, amount)

    def snapshot(self) -> Metrics:
        """The totals of now; callable from any thread."""
        return Metrics(MappingProxyType(dict(self._totals)))
