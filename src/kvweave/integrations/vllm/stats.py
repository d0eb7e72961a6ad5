"""What the connector did, in vLLM's terms: collected per step, logged per interval, counted by Prometheus."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from kvweave.protocol.effects import FailureReason
from kvweave.runtime import Delivered

_LISTS = ("transfer_seconds", "post_seconds", "wait_seconds", "bytes", "rows")
_COUNTERS = {
    "failed": "Requests whose cache could not be loaded, by reason.",
    "repeated_claims": "Claims said again because no answer had come.",
    "retried_reads": "Ranks whose failed reads were read again from another replica.",
    "declined": "Offers given back: nothing of them was missing here, or the request was aborted.",
    "released": "Offers whose blocks were freed, by reason (lease_ended: nobody came in time).",
    "offers": "Prompts offered to decode engines.",
    "offered_parts": "Offers of prompts that were still being prefilled.",
    "early_bytes": "Bytes that moved while their prompt was still being prefilled.",
    "handshakes": "Handshakes that came about.",
    "handshake_failures": "Handshakes that did not, by reason.",
    "peers_lost": "Prefill engines that were ready and are lost.",
    "malformed_messages": "Messages of peers that could not be read.",
    "refused": "Claims, renewals and handshakes refused, by reason.",
    "turned_away": "Connections that were not let in, by reason.",
    "dropped_messages": "Messages of peers that sent more than can be handled.",
}
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_POWERS = tuple(float(2**exponent) for exponent in range(10, 36, 2))
_ROWS = (1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6)
_HISTOGRAMS = {
    "transfer_seconds": (
        "vllm:kvweave_transfer_seconds",
        "Seconds from posting a request's reads to the last.",
        _SECONDS,
    ),
    "post_seconds": ("vllm:kvweave_post_seconds", "Seconds of computing rows and posting, slowest rank.", _SECONDS),
    "wait_seconds": ("vllm:kvweave_wait_seconds", "Seconds of waiting for handshake, claim and grant.", _SECONDS),
    "bytes": ("vllm:kvweave_transfer_bytes", "Bytes of a request over all ranks.", _POWERS),
    "rows": ("vllm:kvweave_transfer_rows", "Separate pieces of a request over all ranks.", _ROWS),
}


class KVWeaveStats(KVConnectorStats):  # type: ignore[misc]
    """One interval: a list per measured quantity, one entry a request, and counters by ``name`` or ``name:label``."""

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        super().__init__(data if data else _empty())

    def reset(self) -> None:
        """Forgets the interval."""
        self.data = _empty()

    def is_empty(self) -> bool:
        """Whether nothing happened."""
        return not any(self.data.values())

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Adds another interval to this one."""
        for name in _LISTS:
            self.data[name].extend(other.data[name])
        self.data["counts"] = dict(Counter(self.data["counts"]) + Counter(other.data["counts"]))
        return self

    def reduce(self) -> dict[str, int | float]:
        """The interval in a few numbers, for a log line."""
        counts: dict[str, float] = {name.replace(":", " "): amount for name, amount in self.data["counts"].items()}
        transfers = len(self.data["bytes"])
        if not transfers:
            return {"transfers": 0, **counts}
        seconds = self.data["transfer_seconds"]
        return {
            "transfers": transfers,
            "MB per transfer": round(sum(self.data["bytes"]) / transfers / 2**20, 3),
            "rows per transfer": round(sum(self.data["rows"]) / transfers, 1),
            "mean transfer (ms)": round(1000 * sum(seconds) / transfers, 3),
            "longest transfer (ms)": round(1000 * max(seconds), 3),
            "mean post (ms)": round(1000 * sum(self.data["post_seconds"]) / transfers, 3),
            "mean wait (ms)": round(1000 * sum(self.data["wait_seconds"]) / transfers, 3),
            **counts,
        }


class TransferStats:
    """Collects from all threads until the next interval is taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stats = KVWeaveStats()

    def count(self, name: str, label: str = "", amount: float = 1) -> None:
        """Adds to a counter; an ``Observer`` of an engine."""
        if (name, label) == ("failed", FailureReason.ABORTED.value):
            name, label = "declined", ""
        if name not in _COUNTERS:
            return
        key = f"{name}:{label}" if label else name
        with self._lock:
            counts = self._stats.data["counts"]
            counts[key] = counts.get(key, 0) + amount

    def add_transfer(self, delivered: Delivered) -> None:
        """Notes one delivery."""
        seconds = delivered.seconds
        waited = seconds["peer"] + seconds["claim"] + seconds["grant"]
        if delivered.early_bytes:
            self.count("early_bytes", amount=delivered.early_bytes)
        values = (seconds["read"], seconds["post"], waited, delivered.nbytes, delivered.num_rows)
        with self._lock:
            for name, value in zip(_LISTS, values, strict=True):
                self._stats.data[name].append(value)

    def take(self) -> KVWeaveStats | None:
        """The interval since the last call, None when nothing happened."""
        with self._lock:
            if self._stats.is_empty():
                return None
            taken, self._stats = self._stats, KVWeaveStats()
            return taken


class KVWeavePromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]
    """The same in Prometheus, under names that begin with ``vllm:kvweave_``."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._histograms = {
            key: self._histogram_cls(name=name, documentation=text, buckets=buckets, labelnames=labelnames)
            for key, (name, text, buckets) in _HISTOGRAMS.items()
        }
        self._counters = {
            name: self._counter_cls(name=f"vllm:kvweave_{name}", documentation=text, labelnames=[*labelnames, "reason"])
            for name, text in _COUNTERS.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Takes one interval in."""
        labels = self.per_engine_labelvalues[engine_idx]
        for key, histogram in self._histograms.items():
            for value in transfer_stats_data[key]:
                histogram.labels(*labels).observe(value)
        for key, amount in transfer_stats_data["counts"].items():
            name, _, reason = key.partition(":")
            self._counters[name].labels(*labels, reason).inc(amount)


def _empty() -> dict[str, Any]:
    return {name: [] for name in _LISTS} | {"counts": {}}
