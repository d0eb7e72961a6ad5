"""The clock counts through suspension and never goes back."""

from __future__ import annotations

import time

from kvweave.runtime.clock import boot_time


def test_clock_is_the_machines_time_since_boot() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= boot_time() <= time.clock_gettime(time.CLOCK_BOOTTIME)
