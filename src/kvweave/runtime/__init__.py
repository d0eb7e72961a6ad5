"""Joins protocol and transport; the only home of threads, clocks and sockets."""

from kvweave.protocol.reference import OfferReference
from kvweave.protocol.timing import Timing
from kvweave.runtime.decode import DecodeEngine
from kvweave.runtime.decode_coordinator import Peer
from kvweave.runtime.handle import Delivered, Fetch
from kvweave.runtime.keys import CurveKeys
from kvweave.runtime.metrics import Metrics
from kvweave.runtime.observation import Observed, observe
from kvweave.runtime.prefill import PrefillEngine
from kvweave.runtime.prefill_coordinator import Released

__all__ = [
    "CurveKeys",
    "DecodeEngine",
    "Delivered",
    "Fetch",
    "Metrics",
    "Observed",
    "OfferReference",
    "Peer",
    "PrefillEngine",
    "Released",
    "Timing",
    "observe",
]
