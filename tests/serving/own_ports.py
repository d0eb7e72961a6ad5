"""Ports for tests, from a place that depends on the process: two runs on one machine stay out of each other's way."""

from __future__ import annotations

import os

from kvweave.serving.ports import take_ports


def own_ports(count: int) -> int:
    """The first of ``count`` free ports that follow one another."""
    return take_ports(20_000 + os.getpid() % 1000 * 12, [count])[0]
