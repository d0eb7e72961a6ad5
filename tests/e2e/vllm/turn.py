"""The turn of one model with one connector: its servers are started once, and its pairs run against them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.e2e.vllm.check import Report
from tests.e2e.vllm.contenders import Contender
from tests.e2e.vllm.fleet import Fleet
from tests.e2e.vllm.incumbent import explained
from tests.e2e.vllm.live_bytes import BytesReport, compare_records
from tests.e2e.vllm.models import MODELS
from tests.e2e.vllm.pairs import Pair, Place, places, waves
from tests.e2e.vllm.proxy import Answer
from tests.e2e.vllm.results import ANSWERED, EQUAL, FAILED, OURS, Row, source_fingerprint, versions
from tests.e2e.vllm.rounds import measure, references, with_bytes
from tests.e2e.vllm.servers import Deployment, Progress, Server, ServerFailed


@dataclass
class Turn:
    """One model, saved in ``served``, with one connector; logs and records go to ``folder``."""

    model: str
    contender: Contender
    served: Path
    folder: Path
    progress: Progress
    _known: dict[tuple[Place, tuple[int, ...]], list[Answer]] = field(default_factory=dict)

    def run(self, pairs: Sequence[Pair]) -> Iterator[Row]:
        """The rows of the pairs, one after the other."""
        with Fleet(self.folder / "logs", self.progress) as fleet:
            for wave in waves(pairs, self.contender.both_ways):
                wanted = sorted({place for pair in wave for place in self._places(pair)})
                self.progress(f"{self.model}, {self.contender.name}: {', '.join(map(str, wanted))}")
                deployments = {place: self._deployment(place) for place in wanted}
                for pair in wave:
                    fleet.hold(deployments)
                    row = self._row(pair, fleet)
                    self.progress(f"  {pair.name}: {row}; {row.transfers} transfers, {row.seconds:.0f} s")
                    yield row

    def _places(self, pair: Pair) -> tuple[Place, Place]:
        return places(pair, self.contender.both_ways)

    def _deployment(self, place: Place) -> Deployment:
        return self.contender.deployment(self.model, self.served, place, self.folder / "records")

    def _row(self, pair: Pair, fleet: Fleet) -> Row:
        failed = [fleet.failed[place] for place in self._places(pair) if place in fleet.failed]
        if failed:
            return self._failed_start(pair, failed[0])
        source, target = (fleet.servers[place] for place in self._places(pair))
        for record in self._records():
            record.unlink()
        marks = [(server, server.log.stat().st_size) for server in (target, source)]
        row, reports = measure(self.contender, pair, source, target, self._references(pair, target))
        if any(not difference.status for report in reports for difference in report.differences):
            fleet.end(set(self._places(pair)))
        return self._judged(row, reports, marks)

    def _references(self, pair: Pair, target: Server) -> list[Answer] | None:
        """What the decode side answers by itself, asked once for all pairs with this side and these prompts."""
        if not MODELS[self.model].repeatable:
            return None
        key = self._places(pair)[1], pair.edges
        if key not in self._known:
            self._known[key] = references(target, pair.prompts)
        return self._known[key]

    def _judged(self, row: Row, reports: Sequence[Report], marks: Sequence[tuple[Server, int]]) -> Row:
        if self.contender.name == OURS:
            for number, report in enumerate(reports):
                if report.differences:
                    self.progress(f"  {row.pair}, round {number + 1}: {report}")
            return row if MODELS[self.model].repeatable else with_bytes(row, self._compared_records())
        if row.outcome == EQUAL and not MODELS[self.model].repeatable:
            return replace(row, outcome=ANSWERED, detail="its tokens can't be judged")
        return explained(row, [server.log.read_bytes()[size:].decode(errors="replace") for server, size in marks])

    def _failed_start(self, pair: Pair, error: ServerFailed) -> Row:
        row = Row(pair.model, pair.name, self.contender.name, FAILED, f"at start: {error}")
        row = replace(row, source=source_fingerprint(), versions=versions())
        return row if self.contender.name == OURS else explained(row, [error.log])

    def _compared_records(self) -> BytesReport:
        return compare_records(json.loads((self.served / "config.json").read_text()), self.folder / "records")

    def _records(self) -> list[Path]:
        return list((self.folder / "records").glob("*.npz"))
