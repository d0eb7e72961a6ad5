"""Names that nobody else has."""

from __future__ import annotations

import pytest

from kvweave.errors import LocalProtocolError
from kvweave.runtime.naming import checked_engine_id, engine_name, rank_names
from tests.protocol.examples import small_layout


def test_engine_names_differ_and_tell_the_role() -> None:
    names = {engine_name("prefill") for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith("prefill-") and len(name) <= 200 for name in names)


@pytest.mark.parametrize("engine_id", ["", "e" * 201, "\u00e9" * 101], ids=["empty", "long", "long in bytes"])
def test_id_that_no_message_can_carry_is_refused(engine_id: str) -> None:
    with pytest.raises(LocalProtocolError, match="engine_id"):
        checked_engine_id("prefill", engine_id)


def test_id_is_the_given_one_or_new() -> None:
    assert checked_engine_id("prefill", "mine") == "mine"
    assert checked_engine_id("prefill", None) != checked_engine_id("prefill", None)


def test_rank_names_differ_within_and_between_starts() -> None:
    layout = small_layout(4)
    names = [*rank_names("engine", layout), *rank_names("engine", layout)]
    assert len(set(names)) == 8
    assert names[1].startswith("engine/tp1/")
