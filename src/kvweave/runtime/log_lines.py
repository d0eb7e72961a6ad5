"""A log that one person can read at a hundred requests a second.

Peers have a line when they come and when they go. What happens per request is counted and summed up once a minute; a
failure's first line comes at once, those of its kind that follow within ten seconds become one line with their number::

    WARNING request r-17: late: the reads were not complete before the granted lease ended
    WARNING late: 212 more like it in the last 10 s
    INFO decode-7: in the last 60 s: 5,961 fetches, 5,748 delivered, 213 failed (212 late, 1 peer_lost), 1.9 GiB

What a peer or a client wrote is shown without control characters, and not at length.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field

from kvweave.runtime.metrics import Metrics, Recorder

REPEAT_SECONDS = 10.0
SUMMARY_SECONDS = 60.0
MOST_KINDS = 256
MOST_LETTERS = 500

_IN_SUMMARY = ("offers", "released", "fetches", "delivered", "failed", "retried_reads", "repeated_claims", "refused",
               "turned_away", "malformed_messages", "dropped_messages", "unsent_messages")  # fmt: skip

logger = logging.getLogger("kvweave")


def plain(text: object, most: int = MOST_LETTERS) -> str:
    """A foreign text for a log line.

    >>> plain("one\\ntwo\\x1b[31m")
    'one two?[31m'
    """
    cut = " ".join(str(text)[: most + 1].split())
    shown = "".join(letter if letter.isprintable() else "?" for letter in cut)
    return shown if len(shown) <= most else f"{shown[:most]}..."


@dataclass(slots=True)
class _Kind:
    since: float
    level: int
    more: int = 0


@dataclass(slots=True)
class LogLines:
    """One engine's log. ``tick`` often; moments are on the engine's clock."""

    engine_id: str
    recorder: Recorder
    _kinds: dict[str, _Kind] = field(default_factory=dict)
    _last: Metrics | None = None
    _last_at: float = 0.0

    def note(self, now: float, level: int, kind: str, text: object) -> None:
        """A line at once, or one more of its kind."""
        known = self._kinds.get(kind)
        if known is not None:
            known.more += 1
        elif len(self._kinds) < MOST_KINDS:
            self._kinds[kind] = _Kind(now, level)
            logger.log(level, "%s", plain(text))

    def tick(self, now: float) -> None:
        """Says what has become due."""
        for kind, known in [(kind, known) for kind, known in self._kinds.items() if now - known.since > REPEAT_SECONDS]:
            del self._kinds[kind]
            if known.more:
                logger.log(known.level, "%s: %d more like it in the last %.0f s", kind, known.more, now - known.since)
                self._kinds[kind] = _Kind(now, known.level)
        if self._last is None:
            self._last, self._last_at = self.recorder.snapshot(), now
        elif now - self._last_at > SUMMARY_SECONDS:
            current = self.recorder.snapshot()
            text = summary(self._last, current)
            if text:
                logger.info("%s: in the last %.0f s: %s", self.engine_id, now - self._last_at, text)
            self._last, self._last_at = current, now


def summary(before: Metrics, after: Metrics) -> str:
    """What happened between two moments, in one line; empty when nothing did.

    >>> summary(Metrics({}), Metrics({("fetches", ""): 5, ("delivered", ""): 3, ("failed", "late"): 2}))
    '5 fetches, 3 delivered, 2 failed (2 late)'
    """
    parts = []
    for name in _IN_SUMMARY:
        grown = Counter({label: after.total(name, label) - before.total(name, label) for label in after.by_label(name)})
        total = sum(grown.values())
        if total:
            labels = ", ".join(f"{amount:,.0f} {label}" for label, amount in grown.most_common(6) if label and amount)
            parts.append(f"{total:,.0f} {name.replace('_', ' ')}" + (f" ({labels})" if labels else ""))
    nbytes = after.total("bytes") - before.total("bytes")
    return ", ".join([*parts, f"{nbytes / 2**30:,.2f} GiB"] if nbytes else parts)
