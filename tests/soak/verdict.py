"""What must hold at the end of a soak, line by line, and how it is shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

from rich.table import Table

from tests.soak.faults import SIDES, Fault
from tests.soak.footprint import Footprint
from tests.soak.load import ANSWERED, LOST, WRONG, Tally

MOST_GROWTH = 1.05
REPORT_SECONDS = 5.0
"""A failure is reported within this time, or within the lease where that is longer."""
WARM_REQUESTS = 500
"""After fewer requests no process is warm, and its memory says nothing."""
SCHEMA = "kvweave.soak/1"


@dataclass(frozen=True, slots=True)
class Memory:
    """One process after the warm-up and at the end; a killed one's successor at the end."""

    process: str
    before: Footprint
    after: Footprint

    @property
    def growth(self) -> float:
        return self.after.resident_bytes / self.before.resident_bytes


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that must hold; a line without a limit only tells."""

    what: str
    found: str
    limit: str = ""
    ok: bool = True


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a soak found."""

    requests: int
    tally: Tally
    faults: Sequence[Fault]
    blocks_left: Mapping[str, int]
    memory: Sequence[Memory]
    seconds: float
    lease_seconds: float
    warm_requests: int

    @property
    def ok(self) -> bool:
        return all(line.ok for line in self.lines())

    @property
    def failures(self) -> dict[str, int]:
        """Requests that were reported as failed, by reason."""
        return {
            what: amount for what, amount in self.tally.outcomes.most_common() if what not in (ANSWERED, WRONG, LOST)
        }

    def lines(self) -> Iterator[Line]:
        outcomes, limit = self.tally.outcomes, max(REPORT_SECONDS, self.lease_seconds)
        yield Line("requests", f"{self.requests:,} in {self.seconds:.0f} s, {outcomes[ANSWERED]:,} answered")
        if len(self.tally.answer_seconds) > 1:
            half, most = (1e3 * quantiles(self.tally.answer_seconds, n=100)[place] for place in (49, 98))
            yield Line("answers of the decode side", f"p50 {half:.0f} ms, p99 {most:.0f} ms")
        for side in SIDES:
            mine = [fault for fault in self.faults if fault.engine.startswith(side)]
            kills = sum(fault.stopped_seconds is None for fault in mine)
            yield Line(f"{side} engines", f"{kills} killed, {len(mine) - kills} stopped beyond the lease")
        yield Line("wrong bytes", str(outcomes[WRONG]), "0", not outcomes[WRONG])
        yield Line("never ended", str(outcomes[LOST]), "0", not outcomes[LOST])
        yield Line("reported as failed", f"{sum(self.failures.values()):,}")
        yield from (Line(f"  {reason}", f"{amount:,}") for reason, amount in self.failures.items())
        latest = self.tally.latest_report_seconds
        yield Line("latest report of a failure", f"{latest:.2f} s", f"{limit:g} s", latest <= limit)
        left = sum(self.blocks_left.values())
        yield Line("blocks in use at the end", str(left), "0", not left)
        yield from map(self._memory_line, self.memory)

    def _memory_line(self, memory: Memory) -> Line:
        sizes = f"{memory.before.resident_bytes / 2**20:.0f} to {memory.after.resident_bytes / 2**20:.0f} MiB"
        text = f"{sizes}, {memory.before.open_files} to {memory.after.open_files} files"
        if self.warm_requests < WARM_REQUESTS:
            return Line(f"memory of {memory.process}", text)
        return Line(f"memory of {memory.process}", text, f"x {MOST_GROWTH}", memory.growth <= MOST_GROWTH)

    def table(self) -> Table:
        table = Table("", "found", "limit", "", title="Soak")
        for line in self.lines():
            table.add_row(line.what, line.found, line.limit, "" if not line.limit else "ok" if line.ok else "FAILED")
        return table

    def document(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA, "ok": self.ok, "requests": self.requests, "seconds": self.seconds,
            "answered": self.tally.outcomes[ANSWERED], "wrong_bytes": self.tally.outcomes[WRONG],
            "never_ended": self.tally.outcomes[LOST], "failed": self.failures,
            "latest_report_seconds": self.tally.latest_report_seconds, "latest_report": self.tally.latest_report,
            "blocks_left": dict(self.blocks_left),
            "memory": {
                memory.process: {"warm": memory.before.resident_bytes, "end": memory.after.resident_bytes}
                for memory in self.memory
            },
            "kills": sum(fault.stopped_seconds is None for fault in self.faults),
            "stops": sum(fault.stopped_seconds is not None for fault in self.faults),
        }  # fmt: skip
