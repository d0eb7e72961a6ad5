"""The pages on operation and security name every reason, metric and bound as the code has them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvweave.protocol.effects import FailureReason
from kvweave.protocol.messages import RefusalReason

DOCS = Path(__file__).parent.parent / "docs"
OPERATIONS = (DOCS / "operations.md").read_text(encoding="utf-8")
THREATS = (DOCS / "threat-model.md").read_text(encoding="utf-8")


def section(text: str, title: str) -> str:
    return text.split(f"\n## {title}\n")[1].split("\n## ", maxsplit=1)[0]


def test_every_reason_is_explained_once() -> None:
    explained = re.findall(r"^\| `(\w+)` \| (?:prefill|decode) \|", section(OPERATIONS, "Reasons"), re.M)
    assert sorted(explained) == sorted({*FailureReason, *RefusalReason})


def test_every_metric_is_explained() -> None:
    pytest.importorskip("prometheus_client")
    from kvweave.runtime.prometheus import COUNTERS

    named = set(re.findall(r"`(\w+)_total(?:\{reason\})?`", section(OPERATIONS, "Metrics")))
    assert named == set(COUNTERS)
    reasons = set(re.findall(r"`(\w+)_total\{reason\}`", section(OPERATIONS, "Metrics")))
    assert reasons == {name for name, (_, label) in COUNTERS.items() if label}


def test_every_stage_is_explained() -> None:
    from kvweave.runtime.record import STAGES

    explained = re.findall(r"^\| `(\w+)` \|", section(OPERATIONS, "Stages and traces"), re.M)
    assert sorted(explained) == sorted([*STAGES, "post", "retry", "pinned"])


def test_every_planted_fault_is_explained() -> None:
    from kvweave.testing.simulation.plants import PLANTS

    simulation = (DOCS / "simulation.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w[\w-]*)` \|", section(simulation, "Planted faults"), re.M) == list(PLANTS)


def test_bounds_are_those_of_the_code() -> None:
    from kvweave.core.plan import MOST_CELLS
    from kvweave.protocol.acknowledgements import MOST_OWED, MOST_OWED_SECONDS
    from kvweave.protocol.codec import MOST_MESSAGE_BYTES
    from kvweave.protocol.description import MOST_DESCRIPTION_BYTES, MOST_LAYERS
    from kvweave.protocol.handshake import MOST_GUESTS, MOST_GUESTS_EACH
    from kvweave.protocol.offer import MOST_OFFER_SECONDS
    from kvweave.runtime import control, intake, prefill_coordinator

    stated = section(THREATS, "Bounds on what a peer can cost")
    seconds = control.UNREAD_MILLISECONDS // 1000
    at_once, later = prefill_coordinator.HANDSHAKE_BYTES_AT_ONCE, prefill_coordinator.HANDSHAKE_BYTES_PER_SECOND
    for text in (
        f"{control.MOST_REQUEST_BYTES >> 20} MiB, {MOST_MESSAGE_BYTES >> 20} MiB;",
        f"| {intake.MOST_HANDLED}, then the others have their turn; {intake.MOST_WAITING_MESSAGES:,} or ",
        f" or {intake.MOST_WAITING_BYTES >> 20} MiB wait",
        f"| {control.MOST_UNREAD_REQUESTS} (prefill), {control.MOST_UNREAD_ANSWERS} (decode)",
        f"| {control.MOST_UNSENT_ANSWERS:,}, and its connection ends after {seconds} seconds",
        f"{at_once >> 20} MiB at once, {later >> 20} MiB a second",
        f"{MOST_DESCRIPTION_BYTES >> 20} MiB, {MOST_LAYERS:,} layers",
        f"| {MOST_CELLS:,}; 2^17; 2^25 rows a source",
        f"| {MOST_GUESTS:,}, and {MOST_GUESTS_EACH:,} of one key (one host, without keys); the one that was silent",
        f"| {MOST_OFFER_SECONDS:,.0f} seconds; then it is refused as `too_old`",
        f"| {MOST_OWED:,}, for at most {MOST_OWED_SECONDS:.0f} seconds each",
    ):
        assert text in stated
