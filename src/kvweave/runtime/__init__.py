"""Joins protocol and transport; the only home of threads, clocks and sockets."""

from kvweave.protocol.reference import OfferReference
from kvweave.protocol.timing import Timing
from kvweave.runtime.decode import DecodeEngine
from kvweave.runtime.decode_commands import Peer
from kvweave.runtime.handle import Delivered, Fetch
from kvweave.runtime.keys import CurveKeys
from kvweave.runtime.metrics import Metrics
from kvweave.runtime.observation import Observed, observe
from kvweave.runtime.prefill import PrefillEngine
from kvweave.runtime.prefill_coordinator import Released
from kvweave.runtime.transfer import ProgressiveTransfer, new_transfer_id

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
    "ProgressiveTransfer",
    "Released",
    "Timing",
    "new_transfer_id",
    "observe",
]
