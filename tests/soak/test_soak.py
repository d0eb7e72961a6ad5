"""A short soak: engines over NIXL are killed and stopped under load, and everything that must hold does."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="the embedded engine needs the extra hf")
pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError)
if os.environ.get("KVWEAVE_SOAK") != "1":
    pytest.skip(
        "engines are killed under load, and reports timed: `make soak`, or set KVWEAVE_SOAK=1", allow_module_level=True
    )
from tests.soak.faults import Wanted
from tests.soak.run import Settings, soak


def test_nothing_is_lost_and_nothing_wrong_while_engines_die(tmp_path: Path) -> None:
    told: list[str] = []
    settings = Settings(requests=400, seed=7, wanted=Wanted(kills=1, stops=1))
    outcome = asyncio.run(soak(settings, tmp_path, told.append))
    assert outcome.ok, (outcome.document(), told)
    assert outcome.tally.outcomes["answered"] >= 200
    assert sum("killed and replaced" in line for line in told) == 2
