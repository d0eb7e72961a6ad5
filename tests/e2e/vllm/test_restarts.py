"""A prefill server that comes and goes under load: right answers, and a decode server that stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.vllm.restarts import restart_under_load


@pytest.mark.parametrize(("policy", "allowed"), [("recompute", set()), ("fail", {"HTTP 500"})])
def test_answers_stay_right_while_the_prefill_server_is_killed(
    models: Path, tmp_path: Path, policy: str, allowed: set[str]
) -> None:
    found = restart_under_load(models, tmp_path, kills=1, policy=policy)
    assert found.ok, found
    assert set(found.outcomes) <= {"answered", "not prefilled"} | allowed, found
