"""Metrics for Prometheus: an observer that counts into a registry, with names ``kvweave_*``.

::

    from kvweave.runtime.prometheus import PrometheusObserver

    engine = DecodeEngine(..., observer=PrometheusObserver(role="decode"))
    prometheus_client.start_http_server(9400)

The only home of ``prometheus_client`` (extra ``metrics``). vLLM's connector reports through vLLM's own metrics.
"""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram

COUNTERS = {
    "offers": ("Prompts offered to decode engines.", ""),
    "offered_parts": ("Offers of prompts that were still being prefilled.", ""),
    "released": ("Offers whose blocks were freed, by reason.", "reason"),
    "refused": ("Claims, renewals and handshakes refused, by reason.", "reason"),
    "turned_away": ("Connections that were not let in, by reason.", "reason"),
    "found_incompatible": ("Decode engines that found this engine incompatible.", ""),
    "dropped_messages": ("Messages of peers that sent more than can be handled.", ""),
    "fetches": ("Fetches begun.", ""),
    "delivered": ("Fetches delivered.", ""),
    "failed": ("Fetches failed, by reason.", "reason"),
    "repeated_claims": ("Claims said again because no answer had come.", ""),
    "retried_reads": ("Ranks whose failed reads were read again from another replica.", ""),
    "bytes": ("Bytes delivered.", ""),
    "rows": ("Separate pieces delivered.", ""),
    "handshakes": ("Handshakes that came about.", ""),
    "handshake_failures": ("Handshakes that did not, by reason.", "reason"),
    "peers_lost": ("Prefill engines that were ready and are lost.", ""),
    "malformed_messages": ("Messages of peers that could not be read.", ""),
    "unsent_messages": ("Messages that no peer took.", ""),
    "checked_pieces": ("Pieces whose checksums were compared.", ""),
}
STAGES = "Seconds of each stage of a fetch, and of an offer (pinned)."
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)


class PrometheusObserver:
    """Counts for one role into a registry. Several engines of a process may share an observer of their role."""

    def __init__(self, role: str, registry: CollectorRegistry = REGISTRY) -> None:
        prefix = f"kvweave_{role}"
        self._counters = {
            name: Counter(f"{prefix}_{name}", text, [label] if label else [], registry=registry)
            for name, (text, label) in COUNTERS.items()
        }
        self._seconds = Histogram(f"{prefix}_stage_seconds", STAGES, ["stage"], buckets=BUCKETS, registry=registry)

    def __call__(self, name: str, label: str, amount: float) -> None:
        """See ``Observer``; what is not known by name is left out."""
        if name == "seconds":
            self._seconds.labels(label).observe(amount)
        elif name in self._counters:
            counter = self._counters[name]
            (counter.labels(label) if COUNTERS[name][1] else counter).inc(amount)
