"""Names that nobody else has."""

from __future__ import annotations

from kvweave.runtime.naming import engine_name, rank_names
from tests.protocol.examples import small_layout


def test_engine_names_differ_and_tell_the_role() -> None:
    names = {engine_name("prefill") for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith("prefill-") and len(name) <= 200 for name in names)


def test_rank_names_differ_within_and_between_starts() -> None:
    layout = small_layout(4)
    names = [*rank_names("engine", layout), *rank_names("engine", layout)]
    assert len(set(names)) == 8
    assert names[1].startswith("engine/tp1/")
