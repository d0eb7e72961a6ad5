"""Events and commands are frozen values, so workers may live in other processes."""

from __future__ import annotations

from typing import get_args

import pytest

from kvweave.runtime.events import ReadStatistics, WorkerCommand, WorkerEvent


@pytest.mark.parametrize(
    "kind", [*get_args(WorkerEvent), *get_args(WorkerCommand), ReadStatistics], ids=lambda kind: kind.__name__
)
def test_what_passes_between_coordinator_and_worker_is_frozen(kind: type) -> None:
    assert kind.__dataclass_params__.frozen
