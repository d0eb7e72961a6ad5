"""Planted faults: what must be noticed when something goes wrong on the way from one engine to the other."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from kvweave.engines.hf.process import EngineProcess
from kvweave.transport.base import ReadHandle, ReadState, Transport
from kvweave.transport.rows import ReadRows


class ZeroingTransport:
    """A transport that reports its reads as done, and leaves zeros where their bytes should be."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self._reads: list[tuple[ReadHandle, ReadRows]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read(self, peer: str, rows: ReadRows, attended: bool = True) -> ReadHandle:
        handle = self._inner.read(peer, rows, attended)
        self._reads.append((handle, rows))
        return handle

    def progress(self) -> int:
        under_way = self._inner.progress()
        for handle, rows in self._reads:
            if handle.state is ReadState.DONE:
                for address, nbytes in zip(rows.target_address, rows.nbytes, strict=True):
                    ctypes.memset(int(address), 0, int(nbytes))
        self._reads = [(handle, rows) for handle, rows in self._reads if not handle.state.terminal]
        return under_way


class FaultyEngine(EngineProcess):
    """An engine process that does wrong what ``fault`` says, as long as it says so.

    ``other prompt``: prefills another prompt of the same length. ``leak``: makes an offer that nobody fetches.
    """

    fault = ""

    def prefill(self, request_id: str, tokens: Sequence[int]) -> Any:
        if self.fault == "leak":
            super().prefill("nobody's", tokens[:20])
        return super().prefill(request_id, [token ^ 1 for token in tokens] if self.fault == "other prompt" else tokens)

    def blocks_in_use(self, patience_seconds: float = 10.0) -> int:
        return super().blocks_in_use(0.1 if self.fault == "leak" else patience_seconds)
