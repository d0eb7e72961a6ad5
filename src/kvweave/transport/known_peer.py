"""A peer that a NIXL transport is connected to, and which way its reads take."""

from __future__ import annotations

from dataclasses import dataclass

from kvweave.transport.choice import Choice
from kvweave.transport.neighbour import Neighbour
from kvweave.transport.piecewise import PiecewiseRead, ProbeRead
from kvweave.transport.regions import RegionTable
from kvweave.transport.rows import ReadRows
from kvweave.transport.staged_read import StagedRead
from kvweave.transport.staged_source import StagedSource


@dataclass(slots=True)
class KnownPeer:
    """The agent data it was connected by, the regions it described, and where its process may be.

    ``staged`` is its ring, if it has one that may be used; ``choice`` is there once it was measured.
    """

    data: bytes
    regions: RegionTable
    neighbour: Neighbour
    proven: bool = False
    staged: StagedSource | None = None
    choice: Choice | None = None

    def prefers_staged(self, rows: ReadRows, staging: str, now: float) -> bool:
        """Whether the peer should gather these rows."""
        if self.staged is None or len(rows) == 0 or not _in_main_memory(rows):
            return False
        if staging == "always":
            return True
        return self.staged.usable(now) and self.choice is not None and self.choice.prefers_staged(rows)

    def note(self, read: PiecewiseRead, now: float) -> None:
        """How long a read took that is done says how the next ones are read.

        What a direct one took beside others says nothing: it waits for its turn here, as a staged one would.
        """
        choice = self.choice
        if choice is None or isinstance(read, ProbeRead) or not _in_main_memory(read.rows):
            return
        way = choice.staged if isinstance(read, StagedRead) else choice.direct
        if way is choice.staged or read.alone:
            way.note(read.rows, now - read.begun_at)
        choice.took(read.rows, way)

    def advance(self, now: float) -> None:
        """Does what can be done for staged reads, once the connection is proven."""
        if self.proven and self.staged is not None and self.staged.busy:
            self.staged.advance(now)

    def leave(self) -> None:
        """The peer is being forgotten: nothing is posted for staged reads any more."""
        if self.staged is not None:
            self.staged.leave()

    def settled(self) -> bool:
        """Whether nothing of staged reads is under way."""
        return self.staged is None or self.staged.settled()

    def end(self) -> None:
        """Gives up what staged reads hold."""
        if self.staged is not None:
            self.staged.end()


def _in_main_memory(rows: ReadRows) -> bool:
    return (rows.source_memory, rows.source_device, rows.target_memory, rows.target_device) == ("DRAM", 0, "DRAM", 0)
