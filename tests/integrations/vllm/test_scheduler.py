"""Our scheduler role in vLLM's scheduler: it never waits, tells what it did, and refuses what it cannot do."""

from __future__ import annotations

from pathlib import Path

from tests.integrations.vllm.scheduling import (
    Two,
    prompt_of,
    stalled,
)


def test_a_step_never_waits_for_a_transfer(config_folder: Path) -> None:
    with stalled(config_folder) as two:
        two.transfer(prompt_of(50), name="stalled")
        two.decode.step()
        other = two.decode.request("other", prompt_of(20), 5)
        for _ in range(5):
            two.decode.step()
        assert other.is_finished()
        assert two.decode.reported("loaded") == []


def test_what_was_done_is_in_the_statistics(two: Two) -> None:
    request = two.transfer(prompt_of(50))
    two.decode.run_until(request.is_finished)
    two.settle()
    data = two.decode.stats.data
    assert len(data["transfer_seconds"]) == len(data["bytes"]) == 1
    assert data["bytes"] == [49 * 2 * 4 * 2 * 32 * 2]
    assert data["counts"] == {"handshakes": 1}
    counts = two.prefill.stats.data["counts"]
    assert counts == {"offers": 1, "handshakes": 1, "released:acknowledged": 1}
